"""Ranks as processes of this machine, under an agent that survives what they do."""
