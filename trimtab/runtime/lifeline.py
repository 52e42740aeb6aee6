"""Ties a process's life to its parent's: nothing of a run outlives whoever watches it."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals, *, parent: int | None = None) -> None:
    """Have the kernel send ``number`` to this process when the thread that started it ends. Linux only.

    ``parent`` is the process that must still be there; if it went before this call, this process ends at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)
