"""Ties a process's life to its parent's: nothing of a run outlives whoever watches it."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send ``number`` to this process when the thread that started it ends. Linux only.

    A parent that went before this call is not noticed: see ``is_orphan``.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def is_orphan(parent: int) -> bool:
    """Whether the process that started this one, ``parent``, is gone."""
    return os.getppid() != parent
