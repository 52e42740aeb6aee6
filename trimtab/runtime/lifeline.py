"""What a process asks of the kernel for itself: to end with its parent, for nothing of a run outlives who watches it; a name."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send ``number`` to this process when the thread that started it ends. Linux only.

    A parent that went before this call is not noticed: see ``is_orphan``.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def is_orphan(parent: int) -> bool:
    """Whether the process that started this one, ``parent``, is gone."""
    return os.getppid() != parent


def name_process(name: str) -> None:
    """What ``top`` and ``ps -o comm`` show for this process, up to 15 bytes. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())
