"""Which folders of a run are checkpoints, and which of them are whole?

A checkpoint is a folder ``step-<N>`` with its manifest and the files that this lists. A folder under any other name, such
as ``step-<N>.tmp-<pid>``, never counts as one.

Text and sizes come in as values: who reads the disk passes them.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trimtab.ledger.manifests import MANIFEST_NAME, CheckpointError, Manifest, parse_manifest, stored_path

_STEP_FOLDER = re.compile(r"step-(0|[1-9][0-9]{0,17})")
_UNFINISHED_FOLDER = re.compile(r"step-(0|[1-9][0-9]{0,17})\.tmp-([0-9]{1,10})(?:-([0-9a-f]{8}))?(?:\.gone)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCheckpoint:
    """A folder that is, or was to become, a checkpoint."""

    step: int
    name: str
    manifest: Manifest | None = None
    error: CheckpointError | None = None
    """Why the folder does not count as a checkpoint; None if it is complete."""

    @property
    def is_complete(self) -> bool:
        """Every file is there with its size. Contents are not read: that is ``verify``'s work."""
        return self.error is None


def folder_name(step: int) -> str:
    """The name of the folder that holds the checkpoint of a step."""
    return f"step-{step}"


def step_of(name: str) -> int | None:
    """The step of a folder named as a checkpoint, or None.

    >>> step_of("step-1000"), step_of("step-1000.tmp-77"), step_of("step-007")
    (1000, None, None)
    """
    match = _STEP_FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def unfinished_name(step: int, pid: int, space: str) -> str:
    """The name of what a process has not finished.

    Args:
        step: Of the checkpoint.
        pid: Of the process.
        space: Where that number means this process: a machine, or a container of it, in eight hexadecimal digits.
    """
    return f"{folder_name(step)}.tmp-{pid}-{space}"


def writer_of(name: str) -> tuple[int, str] | None:
    """The process that left a save or a removal unfinished under this name, and where; None for any other name.

    >>> writer_of("step-20.tmp-77-0a1b2c3d"), writer_of("step-20.tmp-77.gone"), writer_of("step-20")
    ((77, '0a1b2c3d'), (77, ''), None)
    """
    match = _UNFINISHED_FOLDER.fullmatch(name)
    return (int(match[2]), match[3] or "") if match else None


def list_checkpoints(
    names: Iterable[str], *, read: Callable[[str], str], size: Callable[[str], int]
) -> tuple[FoundCheckpoint, ...]:
    """The checkpoints of a folder in order of step, unfinished and torn ones included, each with its error.

    Args:
        names: Entries of the folder ``checkpoints``, in any order; unrelated ones are passed over.
        read: Text of a file, given ``step-20/manifest.json``. Raises OSError if it cannot.
        size: Bytes of a file, given ``step-20/model.safetensors``. Raises OSError if it cannot.
    """
    found = [
        _look_at(name, step, read, size) if step_of(name) is not None else _unfinished(name, step)
        for name in names
        if (step := _step_of_any(name)) is not None
    ]
    return tuple(sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.name)))


def _step_of_any(name: str) -> int | None:
    match = _STEP_FOLDER.fullmatch(name) or _UNFINISHED_FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def _unfinished(name: str, step: int) -> FoundCheckpoint:
    return FoundCheckpoint(step=step, name=name, error=CheckpointError(f"{name}: the save did not finish"))


def _look_at(name: str, step: int, read: Callable[[str], str], size: Callable[[str], int]) -> FoundCheckpoint:
    source = f"{name}/{MANIFEST_NAME}"
    try:
        manifest = parse_manifest(read(source), source)
        _check_sizes(name, step, manifest, size)
    except OSError as error:
        failure = CheckpointError(f"{source}: {error.strerror}")
        return FoundCheckpoint(step=step, name=name, error=failure)
    except CheckpointError as error:
        return FoundCheckpoint(step=step, name=name, error=error)
    return FoundCheckpoint(step=step, name=name, manifest=manifest)


def _check_sizes(name: str, step: int, manifest: Manifest, size: Callable[[str], int]) -> None:
    if manifest.step != step:
        raise CheckpointError(f"{name}/{MANIFEST_NAME}: it is of step {manifest.step}")
    for entry in manifest.files:
        try:
            found = size(f"{name}/{stored_path(manifest, entry.name)}")
        except OSError as error:
            raise CheckpointError(f"{name}/{entry.name}: {error.strerror}") from error
        if found != entry.size_bytes:
            raise CheckpointError(f"{name}/{entry.name}: {found} bytes, expected {entry.size_bytes}")
