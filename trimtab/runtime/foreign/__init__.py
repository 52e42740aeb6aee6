"""Reads checkpoints that other systems wrote, and runs nothing of what they say."""
