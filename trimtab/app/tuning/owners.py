"""Who holds a lease: a process of this machine, told from a later one with the same number; and whether it is gone."""

import os
import socket
from pathlib import Path


def own_name() -> str:
    """Of this process, for a lease."""
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}"


def is_gone(owner: str) -> bool:
    """Whether an owner is known to have ended. Of another machine, and where there is no /proc, nothing is known."""
    host, pid, started = owner.rsplit("/", 2)
    return host == socket.gethostname() and Path("/proc/self").exists() and _started(int(pid)) != started


def _started(pid: int) -> str:
    """When the kernel started a process, in its ticks since it was booted; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text[text.rindex(")") + 2 :].split()
    return "" if fields[0] in "ZX" else fields[19]
