"""Writing so that a power cut finds either everything or nothing. Standard library only."""

import os
from pathlib import Path


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


def free_bytes(folder: Path) -> int:
    """Bytes that an ordinary user can still write where the folder is."""
    storage = os.statvfs(folder)
    return storage.f_bavail * storage.f_frsize
