"""Weights of Hugging Face folders, in and out: what is in the files, reading it in pieces, writing it in shards.

Import from the modules: ``folder`` needs no torch.
"""
