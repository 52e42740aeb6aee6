"""How several tensors travel as one, without being copied more often than once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.runtime.compat import storage_of
from trimtab.runtime.lowering.extents import Extent


def behind_each_other(tensors: Sequence[Tensor]) -> Tensor | None:
    """One vector over tensors that lie in one storage without a gap; None if they do not."""
    first = tensors[0]
    storage, at = storage_of(first), first.storage_offset()
    for tensor in tensors:
        if (
            tensor.dtype is not first.dtype
            or not tensor.is_contiguous()
            or storage_of(tensor) != storage
            or tensor.storage_offset() != at
        ):
            return None
        at += tensor.numel()
    return first.as_strided((int(at - first.storage_offset()),), (1,))


def in_one(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one vector: over their own storage if they lie behind each other in it, else a copy."""
    together = behind_each_other(tensors)
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if together is None else together


@dataclass(frozen=True, slots=True)
class Rows:
    """Tensors whose storage is cut into equal pieces, one for each rank of a group: a matrix with a row for each rank.

    Args:
        ranks: Of the group.
        pieces: Elements of each tensor's piece.
        wholes: Shape of each tensor when it is put together.
    """

    ranks: int
    pieces: tuple[int, ...]
    wholes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, wholes: Sequence[Extent], pieces: Sequence[Sequence[Extent]]) -> "Rows | None":
        """The rows of some tensors; None where pieces are no equal runs of a whole that follow each other.

        Args:
            wholes: What each tensor is when it is put together.
            pieces: For each tensor the pieces, by place in the group.
        """
        for whole, each in zip(wholes, pieces, strict=True):
            start, length = whole.flat.start, each[0].flat.length
            for place, piece in enumerate(each):
                run = piece.stored
                if run is None or (run.start, run.length) != (start + place * length, length):
                    return None
            if not length * len(each) - whole.flat.length >= 0:
                return None
        lengths = tuple(each[0].flat.length for each in pieces)
        return cls(len(pieces[0]), lengths, tuple(torch.Size(whole.shape) for whole in wholes))

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Whole tensors as a matrix [rank, element of a piece], ends padded with zeros."""
        return torch.cat(
            [
                _padded(tensor.reshape(-1), self.ranks * length).view(self.ranks, length)
                for tensor, length in zip(tensors, self.pieces, strict=True)
            ],
            dim=1,
        )

    def part(self, matrix: Tensor) -> list[Tensor]:
        """The whole tensors of such a matrix."""
        found = [matrix.new_empty((self.ranks, length)) for length in self.pieces]
        torch.split_with_sizes_copy(matrix, self.pieces, dim=1, out=found)
        return [
            _cut(tensor.view(-1), whole.numel()).view(whole)
            for tensor, whole in zip(found, self.wholes, strict=True)
        ]


def _padded(flat: Tensor, length: int) -> Tensor:
    missing = length - flat.numel()
    return functional.pad(flat, (0, missing)) if missing else flat


def _cut(flat: Tensor, length: int) -> Tensor:
    """Without padding, which would live as long as the tensor does."""
    return flat if flat.numel() == length else flat[:length].clone()
