"""Trimtab: a programmable training system."""

__version__ = "0.1.0"
