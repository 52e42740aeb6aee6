"""Ranks as processes of this machine under torchrun, which ends all of them when one is lost."""
