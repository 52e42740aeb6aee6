"""The tensors of a checkpoint, box by box: nobody who reads one needs the memory of all. Without torch."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from os import close
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.catalog.hugging_face import Box
from trimtab.ledger.manifests import CheckpointError, FileEntry
from trimtab.runtime.checkpoint.errors import StateMismatchError
from trimtab.runtime.checkpoint.pieces import StoredBox, StoredParts, inside, overlap, stored_parts
from trimtab.runtime.checkpoint.store import OpenCheckpoint, check_digest, check_parts
from trimtab.runtime.checkpoint.tensorfile import parse_header

Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]
"""By part and logical name."""


@contextmanager
def open_contents(folder: Path) -> Iterator["Contents"]:
    """The tensors of a checkpoint, which is not pruned meanwhile.

    Raises: as ``Contents``; CheckpointError if there is no checkpoint.
    """
    with OpenCheckpoint(folder) as opened:
        yield Contents(opened)


class Contents:
    """Reads tensors of an open checkpoint; nothing is kept.

    Every byte of a file is checked before the first of them is used. A file from which nothing is read is not: where
    ranks wrote files of their own, each rank checks those that it needs.

    Args:
        opened: The checkpoint; open for as long as this is read.

    Raises: CheckpointError naming the file that is missing, damaged, or not what its name says.
    """

    def __init__(self, opened: OpenCheckpoint) -> None:
        self._opened = opened
        self._checked: set[FileEntry] = set()
        self._files = {entry: self._mapped(entry) for entry in opened.manifest.files}
        try:
            self.parts = self._parts()
        except CheckpointError:
            self.check()  # What does not fit together may be a flipped bit: then that is what is wrong.
            raise

    @property
    def step(self) -> int:
        """Optimizer steps finished."""
        return self._opened.manifest.step

    @property
    def extra(self) -> Mapping[str, Any]:
        """As it was given to the saver."""
        return self._opened.manifest.extra

    @property
    def shapes(self) -> Shapes:
        """Of all tensors."""
        return {
            part: {name: tensor.shape for name, tensor in tensors.items()}
            for part, tensors in self.parts.items()
        }

    def check(self) -> None:
        """Read every byte of every file.

        Raises: CheckpointError naming the first that is damaged.
        """
        for entry in self._files:
            self._check(entry)

    def check_shapes(self, expected: Shapes) -> None:
        """Compare with what is wanted: by part, name and shape, never by position.

        Raises: StateMismatchError with every name that is missing, extra or of another shape; CheckpointError if that
            comes of a damaged file.
        """
        have, want = _flattened(self.shapes), _flattened(expected)
        if have == want:
            return
        self.check()
        raise StateMismatchError(
            self._opened.name,
            missing=tuple(sorted(want.keys() - have.keys())),
            extra=tuple(sorted(have.keys() - want.keys())),
            mismatched=tuple(
                (name, have[name], want[name])
                for name in sorted(have.keys() & want.keys())
                if have[name] != want[name]
            ),
        )

    def copy(self, part: str, name: str, box: Box, target: NDArray[np.float32]) -> None:
        """Copy a box of a tensor to an array of its shape.

        Raises: CheckpointError naming the file that is damaged.
        """
        for stored in self.parts[part][name].boxes:
            common = overlap(stored.box, box)
            if common is not None:
                target[inside(common, box)] = self._array(stored)[inside(common, stored.box)]

    def _array(self, stored: StoredBox) -> NDArray[np.float32]:
        self._check(stored.file)
        tensor = stored.tensor
        last = tensor.offset_bytes + tensor.size_bytes
        contents = self._files[stored.file][tensor.offset_bytes : last]
        return np.frombuffer(contents, dtype="<f4").reshape(tensor.shape)

    def _check(self, entry: FileEntry) -> None:
        if entry in self._checked:
            return
        digest = hashlib.sha256(self._files[entry]).hexdigest()
        check_digest(digest, entry, self._opened.source(entry))
        self._checked.add(entry)

    def _mapped(self, entry: FileEntry) -> memoryview:
        fd = self._opened.open_file(entry)
        try:
            # An empty file cannot be mapped.
            return memoryview(mmap(fd, entry.size_bytes, access=ACCESS_READ) if entry.size_bytes else b"")
        finally:
            close(fd)

    def _parts(self) -> StoredParts:
        opened = self._opened
        tensors = {
            entry: parse_header(contents, opened.source(entry)) for entry, contents in self._files.items()
        }
        check_parts(opened.manifest, {entry.name: found for entry, found in tensors.items()}, opened.name)
        return stored_parts(tensors, opened.name)


def _flattened(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return {f"{part}/{name}": shape for part, tensors in shapes.items() for name, shape in tensors.items()}
