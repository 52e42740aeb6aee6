"""Saves the state of a run while it goes on, and gives back only what is whole.

``saver`` (in the trainer) stages the state and talks to ``writer`` (a small process of its own); ``loader``
reads tensors; ``store`` finds, verifies and exports without torch. This file imports none of them: the
writer's process passes through it and must start in milliseconds.
"""
