"""The folder ``checkpoints`` of a run on disk: what is there, and is it whole? Without torch."""

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from trimtab.ledger.checkpoint_folders import FoundCheckpoint, folder_name, list_checkpoints
from trimtab.ledger.manifests import (
    MANIFEST_NAME,
    CheckpointError,
    FileEntry,
    Manifest,
    UnsupportedFormatError,
    parse_manifest,
)
from trimtab.runtime.checkpoint.checked import CheckedFile, File
from trimtab.runtime.checkpoint.cipher import about, opener
from trimtab.runtime.checkpoint.durable import sync_folder
from trimtab.runtime.checkpoint.errors import EncryptionError, SignatureError, UnsafePathError
from trimtab.runtime.checkpoint.keyring import Keyring, check_signature, check_step, secret_of
from trimtab.runtime.checkpoint.pieces import stored_parts
from trimtab.runtime.checkpoint.sealed import SealedFile
from trimtab.runtime.checkpoint.tensorfile import TensorEntry, read_tensors, split_name

MAX_MANIFEST_BYTES = 256_000_000
MAX_LOOKS = 20
"""At a folder that keeps changing; two or three are common beside a trainer that saves all the time."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileProblem:
    """A file of a checkpoint that is not whole."""

    file: str
    """``step-20/model.safetensors``."""
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewestCheckpoint:
    """Where a run can continue, and what was passed over on the way."""

    folder: Path | None
    """None if the run has no complete checkpoint."""
    warnings: tuple[str, ...]
    """One for every newer folder that is not complete, with the file that is not."""


def resolve_inside(root: Path, name: str) -> Path:
    """The path of a named thing under a folder, for names that come from users, URLs or files.

    Each component must be plain: letters, digits, ``-``, ``_`` and single dots between them. So there is no
    scheme, no encoding, no ``..``, nothing that one reader decodes and another does not. Links are followed
    only as long as they stay inside.

    Raises: UnsafePathError, naming what was asked for.
    """
    if not all(_PLAIN.fullmatch(component) for component in name.split("/")):
        raise UnsafePathError(f"{name!r} is not a plain name inside {root}")
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()):
        raise UnsafePathError(f"{name!r} leads out of {root}, to {path}")
    return path


def find_checkpoints(root: Path) -> tuple[FoundCheckpoint, ...]:
    """Everything in a run's folder ``checkpoints`` in order of step; nothing if there is no such folder.

    Safe beside a running trainer.
    """
    return look_until_still(
        lambda: _names(root),
        read=lambda path: _read_text(root / path),
        size=lambda path: (root / path).lstat().st_size,
    )


def look_until_still(
    names: Callable[[], list[str]], *, read: Callable[[str], str], size: Callable[[str], int]
) -> tuple[FoundCheckpoint, ...]:
    """``list_checkpoints`` of a folder in which others save and prune.

    What changes while it looks makes it look again, at most ``MAX_LOOKS`` times: or it would find the old
    checkpoint gone without having seen the new one, where there was a complete one at every moment.
    """
    before = names()
    for _ in range(MAX_LOOKS):
        found = list_checkpoints(before, read=read, size=size)
        if (after := names()) == before:
            break
        before = after
    return found


def newest_complete(
    root: Path, keys: Keyring | None, suspect: Mapping[int, str] = MappingProxyType({})
) -> NewestCheckpoint:
    """The newest checkpoint of which every file is there with its size; ``load`` checks the contents.

    Args:
        root: The folder ``checkpoints``.
        keys: Of the run; None for a run that has none.
        suspect: Steps that are passed over as long as there is another, and why.

    Raises: UnsupportedFormatError if a newer one is in a format that this Trimtab does not read, SignatureError if one is
        not signed by this run, EncryptionError if the key is missing: passing over it would silently go back in the
        run.
    """
    for _ in range(MAX_LOOKS):
        warnings: list[str] = []
        there = find_checkpoints(root)
        trusted = {found.step for found in there if found.is_complete} - suspect.keys()
        for found in reversed(there):
            folder, error = root / found.name, found.error
            if error is None and found.step in suspect and trusted:
                warnings.append(f"passed over {found.name}: it is suspect: {suspect[found.step]}")
                continue
            if error is None:
                try:
                    OpenCheckpoint(folder, keys).close()
                    return NewestCheckpoint(folder=folder, warnings=tuple(warnings))
                except CheckpointError as refused:
                    error = refused
                if not folder.exists():  # pruned just now: there is a newer one
                    break
            if isinstance(error, UnsupportedFormatError | SignatureError | EncryptionError):
                raise error
            warnings.append(f"passed over {error}")
        else:
            break
    return NewestCheckpoint(folder=None, warnings=tuple(warnings))


def verify_checkpoint(folder: Path, keys: Keyring | None) -> list[FileProblem]:
    """Read every byte of a checkpoint and name each file that is not the run's own and whole; empty if all are."""
    try:
        with OpenCheckpoint(folder, keys) as opened:
            return _verify_files(opened)
    except CheckpointError as error:
        source = f"{folder.name}/{MANIFEST_NAME}"
        return [FileProblem(file=source, reason=str(error).removeprefix(f"{source}: "))]


def set_aside(root: Path, step: int) -> Path:
    """Rename a checkpoint so that it counts no more, and nothing is lost; for a rollback to before it.

    Returns: Where it is now: ``step-20.set-aside-1``.
    """
    folder = root / folder_name(step)
    attempt = 1
    while (aside := folder.with_name(f"{folder.name}.set-aside-{attempt}")).exists():
        attempt += 1
    folder.rename(aside)
    sync_folder(root)
    return aside


class OpenCheckpoint:
    """A checkpoint that is being read: it is not pruned meanwhile, and no link leads out of it.

    A context manager. The lock is advisory and shared among readers; where the storage knows no locks,
    reading goes on without.

    Args:
        folder: Of the checkpoint.
        keys: Of the run that it must be of; None for a run that has none.
        is_opened: Whether what is encrypted will be read; False for those who read the manifest alone.

    Raises: CheckpointError naming what is missing or wrong; SignatureError if this run has not signed it;
        EncryptionError if the key that opens it is missing.
    """

    def __init__(self, folder: Path, keys: Keyring | None, *, is_opened: bool = True) -> None:
        self.name = folder.name
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
        try:
            text = self._read_manifest()
            self.manifest = parse_manifest(text, f"{self.name}/{MANIFEST_NAME}")
            check_step(self.manifest, self.name)
            warning = check_signature(self.manifest, text, self.name, keys)
            self._secrets = {
                entry.name: secret_of(self.manifest, entry, self.name, keys)
                for entry in (self.manifest.files if is_opened else ())
            }
        except BaseException:
            os.close(self._fd)
            raise
        self.warnings = (warning,) if warning else ()
        """What whoever uses it should be told."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let it go. Files that were opened stay open."""
        os.close(self._fd)

    def source(self, entry: FileEntry) -> str:
        """The name of a file in messages."""
        return f"{self.name}/{entry.name}"

    def file(self, entry: FileEntry) -> File:
        """A file, whose bytes are checked, and decrypted, as they are read.

        Raises: CheckpointError naming it, if it is not there or has another size than the manifest states.
        """
        fd = self._open_file(entry)
        try:
            stored = CheckedFile(entry, self.source(entry), MappedBytes(fd, entry.size_bytes))
        finally:
            os.close(fd)
        if (secret := self._secrets[entry.name]) is None:
            return stored
        bound = about(self.manifest.run, self.manifest.step, entry.name)
        return SealedFile(entry, self.source(entry), stored, opener(secret, bound))

    def _open_file(self, entry: FileEntry) -> int:
        fd = _open_regular(entry.name, self.source(entry), folder_fd=self._fd)
        found = os.fstat(fd).st_size
        if found == entry.size_bytes:
            return fd
        os.close(fd)
        raise CheckpointError(f"{self.source(entry)}: {found} bytes, expected {entry.size_bytes}")

    def _read_manifest(self) -> str:
        source = f"{self.name}/{MANIFEST_NAME}"
        return _text_of(_open_regular(MANIFEST_NAME, source, folder_fd=self._fd), source)


class MappedBytes:
    """See Stored; of a file on disk, which stays open for as long as somebody looks into it."""

    is_mapped = True

    def __init__(self, fd: int, size_bytes: int) -> None:
        # An empty file cannot be mapped.
        self._contents = memoryview(mmap(fd, size_bytes, access=ACCESS_READ) if size_bytes else b"")

    def read(self, first: int, last: int) -> memoryview:
        """See Stored."""
        return self._contents[first:last]


def check_parts(manifest: Manifest, tensors: Mapping[str, Iterable[TensorEntry]], source: str) -> None:
    """Refuse a checkpoint that holds less, or more, than was meant to be saved.

    Args:
        manifest: Of the checkpoint.
        tensors: By file, what the files hold.
        source: The checkpoint's name in messages.

    Raises: CheckpointError naming the file and the part.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for file, entries in tensors.items():
        for entry in entries:
            part, _ = split_name(file, entry.name)
            count, size_bytes = found.get((file, part), (0, 0))
            found[file, part] = count + 1, size_bytes + entry.size_bytes
    for stated in manifest.parts:
        count, size_bytes = found.pop((stated.file, stated.name), (0, 0))
        if (count, size_bytes) != (stated.num_tensors, stated.size_bytes):
            raise CheckpointError(
                f"{source}/{stated.file}: part {stated.name!r} has {count} tensors of {size_bytes} bytes, "
                f"expected {stated.num_tensors} of {stated.size_bytes}"
            )
    for file, part in found:
        raise CheckpointError(f"{source}/{file}: part {part!r} is not in the manifest")


def _verify_files(opened: OpenCheckpoint) -> list[FileProblem]:
    problems = []
    tensors = {}
    for entry in opened.manifest.files:
        source = opened.source(entry)
        try:
            file = opened.file(entry)
            file.check()
            tensors[entry] = read_tensors(file, source)
        except CheckpointError as error:
            problems.append(FileProblem(file=source, reason=str(error).removeprefix(f"{source}: ")))
    if not problems:
        check_parts(opened.manifest, {entry.name: found for entry, found in tensors.items()}, opened.name)
        stored_parts(tensors, opened.name)
    return problems


def _names(root: Path) -> list[str]:
    try:
        return sorted(os.listdir(root))
    except FileNotFoundError:
        return []


def _read_text(path: Path) -> str:
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
        contents = file.read(MAX_MANIFEST_BYTES + 1)
    if len(contents) > MAX_MANIFEST_BYTES:
        raise CheckpointError(f"{source}: more than {MAX_MANIFEST_BYTES} bytes")
    try:
        return contents.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{source}: not text: {error}") from error
