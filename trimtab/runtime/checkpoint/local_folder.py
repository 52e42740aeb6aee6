"""A checkpoint's folder on disk as its readers see it: locked against removal, and no link leads out of it. Without torch."""

import fcntl
import os
import stat
from mmap import ACCESS_READ, mmap
from pathlib import Path

from trimtab.ledger.manifests import CheckpointError

MAX_MANIFEST_BYTES = 256_000_000


class LocalFolder:
    """See StoredFolder. The lock is advisory and shared among readers; where storage knows no locks, it goes without."""

    def __init__(self, folder: Path) -> None:
        try:
            self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise CheckpointError(f"{folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._fd)
            raise CheckpointError(f"{folder}: it is being removed") from error
        except OSError:
            pass  # some network storage has no flock

    def text(self, path: str, source: str) -> str:
        """See StoredFolder."""
        return _text_of(_open_regular(path, source, folder_fd=self._fd), source)

    def stored(self, path: str, source: str, size_bytes: int) -> "MappedBytes":
        """See StoredFolder."""
        fd = _open_regular(path, source, folder_fd=self._fd)
        try:
            found = os.fstat(fd).st_size
            if found != size_bytes:
                raise CheckpointError(f"{source}: {found} bytes, expected {size_bytes}")
            return MappedBytes(fd, size_bytes)
        finally:
            os.close(fd)

    def close(self) -> None:
        """See StoredFolder."""
        os.close(self._fd)


class MappedBytes:
    """See Stored; of a file on disk, which stays open for as long as somebody looks into it."""

    is_mapped = True

    def __init__(self, fd: int, size_bytes: int) -> None:
        # An empty file cannot be mapped.
        self._contents = memoryview(mmap(fd, size_bytes, access=ACCESS_READ) if size_bytes else b"")

    def read(self, first: int, last: int) -> memoryview:
        """See Stored."""
        return self._contents[first:last]


def read_text(path: Path) -> str:
    """The text of a plain file in a checkpoint's folder.

    Raises: CheckpointError naming it.
    """
    source = f"{path.parent.name}/{path.name}"
    return _text_of(_open_regular(path, source), source)


def _open_regular(path: str | Path, source: str, *, folder_fd: int | None = None) -> int:
    try:
        # not blocking, or a pipe planted under this name would hold up the reader for ever
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder_fd)
    except OSError as error:
        raise CheckpointError(f"{source}: {error.strerror}") from error
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise CheckpointError(f"{source}: not a regular file")


def _text_of(fd: int, source: str) -> str:
    with open(fd, "rb") as file:
        return text_of(file.read(MAX_MANIFEST_BYTES + 1), source)


def text_of(contents: bytes, source: str) -> str:
    """A manifest's text.

    Raises: CheckpointError naming ``source``.
    """
    if len(contents) > MAX_MANIFEST_BYTES:
        raise CheckpointError(f"{source}: more than {MAX_MANIFEST_BYTES} bytes")
    try:
        return contents.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{source}: not text: {error}") from error
