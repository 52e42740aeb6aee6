"""The checkpoints of a run, on disk or in an object store: what is there, and is it whole? Without torch."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from trimtab.ledger.checkpoint_folders import FoundCheckpoint, folder_name, list_checkpoints
from trimtab.ledger.manifests import (
    MANIFEST_NAME,
    CheckpointError,
    Manifest,
    UnsupportedFormatError,
)
from trimtab.runtime.checkpoint.durable import sync_folder
from trimtab.runtime.checkpoint.errors import EncryptionError, SignatureError, UnsafePathError
from trimtab.runtime.checkpoint.keyring import Keyring
from trimtab.runtime.checkpoint.local_folder import read_text, text_of
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.opened import OpenCheckpoint
from trimtab.runtime.checkpoint.pieces import stored_parts
from trimtab.runtime.checkpoint.tensorfile import TensorEntry, read_tensors, split_name

MAX_LOOKS = 20
"""At a folder that keeps changing; two or three are common beside a trainer that saves all the time."""
SIGHT_S = 60.0
"""In which shared storage shows what another machine has written: caches of names live for half a minute."""
FIRST_LOOK_S = 0.05
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

    folder: Path | ObjectPath | None
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


def find_checkpoints(root: Path | ObjectPath) -> tuple[FoundCheckpoint, ...]:
    """Everything in a run's folder ``checkpoints`` in order of step; nothing if there is no such folder.

    Safe beside a running trainer.

    Raises: OSError if an object store does not answer.
    """
    if isinstance(root, ObjectPath):
        return _find_objects(root)
    return look_until_still(
        lambda: _names(root),
        read=lambda path: read_text(root / path),
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
    root: Path | ObjectPath, keys: Keyring | None, suspect: Mapping[int, str] = MappingProxyType({})
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
                if not (folder / MANIFEST_NAME).exists():  # pruned just now: there is a newer one
                    break
            if isinstance(error, UnsupportedFormatError | SignatureError | EncryptionError):
                raise error
            warnings.append(f"passed over {error}")
        else:
            break
    return NewestCheckpoint(folder=None, warnings=tuple(warnings))


def await_sight(
    folder: Path | ObjectPath,
    keys: Keyring | None,
    *,
    timeout_s: float = SIGHT_S,
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """Return when a checkpoint can be seen that is known to be whole: shared storage may show it late, file by file.

    Args:
        folder: Of the checkpoint, which another rank has found.
        keys: Of the run.
        timeout_s: How long to wait for it.
        on_wait: Called before each look but the first.

    Raises: CheckpointError if it is not seen in time; SignatureError, EncryptionError, UnsupportedFormatError at once.
    """
    deadline_s, pause_s = time.monotonic() + timeout_s, FIRST_LOOK_S
    while True:
        try:
            with OpenCheckpoint(folder, keys) as opened:
                for entry in opened.manifest.files:
                    opened.file(entry)
            return
        except (UnsupportedFormatError, SignatureError, EncryptionError):
            raise
        except CheckpointError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 1.0)
        on_wait()
        if isinstance(folder, Path):
            with contextlib.suppress(OSError):
                os.listdir(folder.parent)  # has network storage look at its folders anew


def verify_checkpoint(folder: Path | ObjectPath, keys: Keyring | None) -> list[FileProblem]:
    """Read every byte of a checkpoint and name each file that is not the run's own and whole; empty if all are."""
    try:
        with OpenCheckpoint(folder, keys) as opened:
            return _verify_files(opened)
    except CheckpointError as error:
        source = f"{folder.name}/{MANIFEST_NAME}"
        return [FileProblem(file=source, reason=str(error).removeprefix(f"{source}: "))]


def set_aside(root: Path | ObjectPath, step: int) -> Path | ObjectPath:
    """Rename a checkpoint so that it counts no more, and nothing is lost; for a rollback to before it.

    In an object store the manifest alone is moved; the files stay where they are.

    Returns: Where it is now: ``step-20.set-aside-1``.
    """
    folder = root / folder_name(step)
    attempt = 1
    while (aside := root / f"{folder.name}.set-aside-{attempt}").exists():
        attempt += 1
    if isinstance(folder, ObjectPath):
        manifest = folder / MANIFEST_NAME
        (ObjectPath(str(aside)) / MANIFEST_NAME).write(manifest.read())
        manifest.remove()
    else:
        folder.rename(str(aside))
        sync_folder(folder.parent)
    return aside


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


def _find_objects(root: ObjectPath) -> tuple[FoundCheckpoint, ...]:
    """One listing tells all sizes; what is not whole yet, or any more, is told by its manifest."""
    sizes = root.sizes()

    def size(path: str) -> int:
        if path not in sizes:
            raise FileNotFoundError(2, "there is no such object", path)
        return sizes[path]

    def read(path: str) -> str:
        size(path)
        return text_of((root / path).read(), path)

    return list_checkpoints(sorted({name.partition("/")[0] for name in sizes}), read=read, size=size)


def _names(root: Path) -> list[str]:
    try:
        return sorted(os.listdir(root))
    except FileNotFoundError:
        return []
