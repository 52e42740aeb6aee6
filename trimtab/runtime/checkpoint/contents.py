"""The tensors of a checkpoint, box by box: nobody who reads one needs the memory of all. Without torch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.catalog.hugging_face import Box
from trimtab.ledger.manifests import CheckpointError
from trimtab.runtime.checkpoint.errors import StateMismatchError
from trimtab.runtime.checkpoint.keyring import Keyring
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.opened import OpenCheckpoint
from trimtab.runtime.checkpoint.pieces import StoredBox, StoredParts, inside, overlap, stored_parts
from trimtab.runtime.checkpoint.store import check_parts
from trimtab.runtime.checkpoint.tensorfile import read_tensors

Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]
"""By part and logical name."""


@contextmanager
def open_contents(folder: Path | ObjectPath, keys: Keyring | None) -> Iterator["Contents"]:
    """The tensors of a checkpoint, which is not pruned meanwhile.

    Args:
        folder: Of the checkpoint.
        keys: Of the run that it must be of; None for a run that has none.

    Raises: as ``Contents`` and ``OpenCheckpoint``.
    """
    with OpenCheckpoint(folder, keys) as opened:
        yield Contents(opened)


class Contents:
    """Reads tensors of an open checkpoint; nothing is kept.

    Every byte is checked before it is used, with the rest of its chunk. What is not read is not: where ranks wrote files
    of their own, each rank checks of them what it needs.

    Args:
        opened: The checkpoint; open for as long as this is read.

    Raises: CheckpointError naming the file that is missing, damaged, or not what its name says.
    """

    def __init__(self, opened: OpenCheckpoint) -> None:
        self._opened = opened
        self._files = {entry: opened.file(entry) for entry in opened.manifest.files}
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
    def warnings(self) -> tuple[str, ...]:
        """What whoever goes on from it should be told."""
        return self._opened.warnings

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
        for file in self._files.values():
            file.check()

    def check_shapes(self, expected: Shapes, *, passed_over: Callable[[str], bool] | None = None) -> None:
        """Compare with what is wanted: by part, name and shape, never by position.

        Args:
            expected: By part and name.
            passed_over: Says of a part that it is not compared; every part is if None.

        Raises: StateMismatchError with every name that is missing, extra or of another shape; CheckpointError if that
            comes of a damaged file.
        """
        have, want = (
            _flattened(
                {part: tensors for part, tensors in shapes.items() if not (passed_over and passed_over(part))}
            )
            for shapes in (self.shapes, expected)
        )
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
                target[inside(common, box)] = self._rows(stored, common)

    def _rows(self, stored: StoredBox, common: Box) -> NDArray[np.float32]:
        """What two boxes have in common; of the stored one only rows are read that have some of it."""
        tensor, (rows, *columns) = stored.tensor, inside(common, stored.box) or (slice(0, 1),)
        row_bytes = tensor.size_bytes // tensor.shape[0] if tensor.shape else tensor.size_bytes
        first = tensor.offset_bytes + rows.start * row_bytes
        contents = self._files[stored.file].read(first, first + (rows.stop - rows.start) * row_bytes)
        found = np.frombuffer(contents, dtype="<f4")
        return found.reshape((rows.stop - rows.start, *tensor.shape[1:]) if tensor.shape else ())[
            (slice(None), *columns) if tensor.shape else ()
        ]

    def _parts(self) -> StoredParts:
        opened = self._opened
        tensors = {entry: read_tensors(file, opened.source(entry)) for entry, file in self._files.items()}
        check_parts(opened.manifest, {entry.name: found for entry, found in tensors.items()}, opened.name)
        return stored_parts(tensors, opened.name)


def _flattened(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return {f"{part}/{name}": shape for part, tensors in shapes.items() for name, shape in tensors.items()}
