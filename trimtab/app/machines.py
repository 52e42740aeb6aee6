"""The machine that a command runs on, as the system tells it; without torch."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DEVICE_FILES = ("nvidia0", "kfd", "davinci0", "accel")
"""Under /dev: NVIDIA, AMD, Ascend and other accelerators, as their drivers name them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """What was found."""

    cores: int
    """That this process may use."""
    memory_bytes: int
    """Of the machine, or the limit that the control group sets if that is lower."""
    """Size of /dev/shm; None if there is none."""
    has_accelerator: bool


def find_machine() -> MachineFacts:
    """The machine that this process runs on."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits()]
    return MachineFacts(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=min(limits),
        has_accelerator=any(Path("/dev", name).exists() for name in _DEVICE_FILES),
    )


def _group_limits() -> Iterator[int]:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)


def _size_of(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks
