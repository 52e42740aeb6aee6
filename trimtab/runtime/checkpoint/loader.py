"""Tensors of a checkpoint, every byte checked before the first is used. Needs no saver."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trimtab.ledger.manifests import FileEntry
from trimtab.runtime.checkpoint.errors import StateMismatchError
from trimtab.runtime.checkpoint.store import OpenCheckpoint, check_digest, check_parts
from trimtab.runtime.checkpoint.tensorfile import TensorEntry, parse_header, split_name

State = Mapping[str, Mapping[str, torch.Tensor]]
"""Tensors by part (``parameters``, ``exp_avg``, ...) and full parameter name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedCheckpoint:
    """The state that a run continues from."""

    step: int
    state: State
    """fp32 on the CPU, owned by the caller."""
    extra: Mapping[str, Any]
    """As it was given to the saver."""


def load(folder: Path, *, expected: State | None = None) -> LoadedCheckpoint:
    """Read and check a checkpoint.

    Args:
        folder: ``checkpoints/step-<N>``.
        expected: The state that will be overwritten, whatever its values; compared by part, name and shape,
            never by position. None takes whatever the checkpoint holds.

    Raises: CheckpointError naming the file that is missing, damaged, or not what its name says;
        UnsupportedFormatError; StateMismatchError listing every name that does not fit.
    """
    state: dict[str, dict[str, torch.Tensor]] = {}
    tensors = {}
    with OpenCheckpoint(folder) as opened:
        for entry in opened.manifest.files:
            contents = _read_checked(opened, entry)
            tensors[entry.name] = parse_header(_bytes_of(contents), opened.source(entry))
            for tensor in tensors[entry.name]:
                part, name = split_name(entry.name, tensor.name)
                state.setdefault(part, {})[name] = _view(contents, tensor)
        check_parts(opened.manifest, tensors, opened.name)
    if expected is not None:
        check_names(state, expected, source=folder.name)
    return LoadedCheckpoint(step=opened.manifest.step, state=state, extra=opened.manifest.extra)


def check_names(found: State, expected: State, *, source: str) -> None:
    """Compare two states by name and shape.

    Raises: StateMismatchError with every name that is missing, extra or of another shape.
    """
    have, want = _shapes(found), _shapes(expected)
    missing = tuple(sorted(want.keys() - have.keys()))
    extra = tuple(sorted(have.keys() - want.keys()))
    mismatched = tuple(
        (name, have[name], want[name])
        for name in sorted(have.keys() & want.keys())
        if have[name] != want[name]
    )
    if missing or extra or mismatched:
        raise StateMismatchError(source, missing=missing, extra=extra, mismatched=mismatched)


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {
        f"{part}/{name}": tuple(tensor.shape)
        for part, tensors in state.items()
        for name, tensor in tensors.items()
    }


def _read_checked(opened: OpenCheckpoint, entry: FileEntry) -> torch.Tensor:
    """The bytes of a file, hashed in the memory in which they stay."""
    contents = torch.empty(entry.size_bytes, dtype=torch.uint8)
    view = _bytes_of(contents)
    fd = opened.open_file(entry)
    with open(fd, "rb", buffering=0) as file:
        filled = 0
        while count := file.readinto(view[filled:]):
            filled += count
    # a file that shrank since its size was looked at leaves a rest that the digest does not forgive
    check_digest(hashlib.sha256(view).hexdigest(), entry, opened.source(entry))
    return contents


def _bytes_of(contents: torch.Tensor) -> memoryview:
    return contents.numpy().data


def _view(contents: torch.Tensor, tensor: TensorEntry) -> torch.Tensor:
    last = tensor.offset_bytes + tensor.size_bytes
    return contents[tensor.offset_bytes : last].view(torch.float32).view(tensor.shape)
