"""Where a writer writes: a folder, in which a rename is the last act of a save. Standard library only."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from trimtab.runtime.checkpoint.durable import (
    free_bytes,
    process_space,
    sync_folder,
    take_away,
    write_all,
)
from trimtab.runtime.checkpoint.marks import read_marks

MANIFEST_FILE = "manifest.json"


class Sink(Protocol):
    """A file that is being written."""

    fd: int | None
    """Of the system's, if there is one."""

    def write(self, chunk: memoryview) -> None:
        """Add bytes.

        Raises: OSError.
        """


class Attempt(Protocol):
    """One save that is under way, of one rank or of several. Nothing of it counts before ``finish``."""

    look_s: float
    """Between two looks at what the others have written."""

    def create(self, name: str) -> contextlib.AbstractContextManager[Sink]:
        """A new file, durable when the block ends."""

    def leave(self, name: str, document: dict[str, Any]) -> None:
        """Leave word for the lead, all of it or none."""

    def find(self, name: str) -> dict[str, Any] | None:
        """Word that another rank has left; None if there is none yet.

        Raises: FileNotFoundError if somebody has given up.
        """

    def arrived_bytes(self, names: list[str]) -> int:
        """How much is there of the files of another rank, as far as can be seen."""

    def finish(self, manifest: dict[str, Any], received: list[str]) -> None:
        """The last act: before it there is no checkpoint, after it a whole one.

        Raises: OSError, for instance if there is one of this step.
        """

    def discard(self) -> None:
        """Give up, for all ranks, and clear away what can be."""


class Target(Protocol):
    """Where the checkpoints of a run are written."""

    def attempt(self, step: int, into: str | None) -> Attempt:
        """Begin, or take part in, a save; ``into`` is what the lead has opened, None for a save of one rank."""

    def clear(self, names: list[str]) -> None:
        """Remove what dead writers have left."""

    def prune(self, step: int) -> None:
        """Remove a checkpoint.

        Raises: FileNotFoundError if there is none; BlockingIOError if it is being read; OSError, ValueError.
        """

    def free_bytes(self) -> int | None:
        """Bytes that can still be written, where that is known."""


class FolderTarget:
    """See Target.

    Args:
        folder: Of all checkpoints.
        run_folder: In which pins and marks stand.
    """

    def __init__(self, folder: Path, run_folder: Path) -> None:
        self._folder, self._run_folder = folder, run_folder

    def attempt(self, step: int, into: str | None) -> Attempt:
        """See Target."""
        final = self._folder / f"step-{step}"
        if into is not None:
            return FolderAttempt(final, self._folder / into)
        unfinished = _unfinished(final)
        unfinished.mkdir()
        return FolderAttempt(final, unfinished)

    def clear(self, names: list[str]) -> None:
        """See Target."""
        for name in names:
            take_away(self._folder / name)

    def prune(self, step: int) -> None:
        """See Target. The name goes first: a removal that is cut short must not leave a torn checkpoint.

        Who pins one holds the lock for readers meanwhile, so that it is looked for in time.
        """
        checkpoint = self._folder / f"step-{step}"
        doomed = _unfinished(checkpoint)
        fd = os.open(checkpoint, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError:
                pass  # some network storage has no flock
            if step in read_marks(self._run_folder).pinned:
                raise OSError("it was pinned just now")
            os.rename(checkpoint, doomed)
            try:
                shutil.rmtree(doomed)
            except BaseException:
                shutil.rmtree(doomed, ignore_errors=True)  # what was begun is finished first
                raise
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        """See Target."""
        return free_bytes(self._folder)


class FolderAttempt:
    """See Attempt.

    Args:
        final: The folder that the checkpoint will be.
        unfinished: The one that it is until then.
    """

    look_s = 0.02

    def __init__(self, final: Path, unfinished: Path) -> None:
        self._final, self._unfinished = final, unfinished

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """See Attempt."""
        with (self._unfinished / name).open("xb", buffering=0) as file:
            yield FileSink(file.fileno())
            os.fsync(file.fileno())

    def leave(self, name: str, document: dict[str, Any]) -> None:
        """See Attempt."""
        self._write(f"{name}.tmp", document)
        os.rename(self._unfinished / f"{name}.tmp", self._unfinished / name)

    def find(self, name: str) -> dict[str, Any] | None:
        """See Attempt. Who gives up takes the folder away."""
        path = self._unfinished / name
        if not path.exists():
            if not self._unfinished.exists():
                raise FileNotFoundError(f"there is no {self._unfinished} any more")
            return None
        document: dict[str, Any] = json.loads(path.read_bytes())
        return document

    def arrived_bytes(self, names: list[str]) -> int:
        """See Attempt."""
        return sum(_size_of(self._unfinished / name) for name in names)

    def finish(self, manifest: dict[str, Any], received: list[str]) -> None:
        """See Attempt. Renaming fails if there is a checkpoint of this name: none is ever overwritten."""
        for name in received:
            (self._unfinished / name).unlink()
        self._write(MANIFEST_FILE, manifest)
        sync_folder(self._unfinished)
        os.rename(self._unfinished, self._final)

    def discard(self) -> None:
        """See Attempt."""
        take_away(self._unfinished)

    def _write(self, name: str, document: dict[str, Any]) -> None:
        with self.create(name) as file:
            file.write(memoryview(json.dumps(document, indent=1, allow_nan=False).encode()))


class FileSink:
    """See Sink."""

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        self._fd = fd

    def write(self, chunk: memoryview) -> None:
        """See Sink."""
        write_all(self._fd, chunk)


def _unfinished(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.tmp-{os.getpid()}-{process_space()}")


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
