"""Writing so that a power cut finds either everything or nothing. Standard library only."""

import contextlib
import hashlib
import os
import platform
import shutil
from pathlib import Path

GONE = ".gone"
"""Ends the name of an unfinished checkpoint that is being removed."""


def write_all(fd: int, contents: memoryview) -> None:
    """Write every byte; one ``write`` may take fewer, for instance when the disk fills up."""
    while contents:
        contents = contents[os.write(fd, contents) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a file's own fsync does not cover the entry that leads to it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def take_away(unfinished: Path) -> None:
    """Remove a folder that is no checkpoint yet, in which others may be writing; nothing if it has gone.

    Its name goes first, in one act: whoever still writes there by name finds nothing, and gives up too.
    """
    doomed = unfinished.with_name(f"{unfinished.name.removesuffix(GONE)}{GONE}")
    for _ in range(2):
        with contextlib.suppress(
            OSError
        ):  # it has gone, or an earlier one of its name is still on its way out
            os.rename(unfinished, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def process_space() -> str:
    """Where this process's number means this process, in eight hexadecimal digits.

    A boot of a machine and, on Linux, a namespace of it: containers of one machine count from 1, each for itself.
    """
    try:
        parts = (
            Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"),
            os.readlink("/proc/self/ns/pid"),
        )
    except OSError:  # no Linux
        parts = platform.node(), ""
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:8]


def free_bytes(folder: Path) -> int:
    """Bytes that an ordinary user can still write where the folder is."""
    storage = os.statvfs(folder)
    return storage.f_bavail * storage.f_frsize
