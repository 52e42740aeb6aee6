"""How tensors are cut flat into equal pieces, one for each rank, and put together again.

A *row* holds one rank's pieces of several tensors, one behind the other; *rows* are those of all ranks, in order.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trimtab.plan.layout import piece_elements
from trimtab.runtime import compat


class Cut:
    """Tensors that travel together.

    Args:
        shapes: Of each tensor, by name.
        num_ranks: Pieces of each.
        device: Where they lie.

    Attributes:
        length: Elements of a row, a multiple of 16.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], num_ranks: int, device: torch.device) -> None:
        self.num_ranks, self._device = num_ranks, device
        self._shapes = {name: torch.Size(shape) for name, shape in shapes.items()}
        self._places: dict[str, tuple[int, int]] = {}
        offset = 0
        for name, shape in self._shapes.items():
            length = piece_elements(shape.numel(), num_ranks)
            self._places[name] = (offset, length)
            offset += length
        self.length = offset

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors, in order."""
        return tuple(self._places)

    def piece(self, row: Tensor, name: str) -> Tensor:
        """A tensor's piece inside a row."""
        offset, length = self._places[name]
        return row[offset : offset + length]

    def padded(self, full: Tensor, name: str) -> Tensor:
        """A tensor with what its last piece is padded with, flat, inside a vector of ``num_ranks * length``."""
        offset, length = self._places[name]
        return full[offset * self.num_ranks : (offset + length) * self.num_ranks]

    def whole(self, full: Tensor, name: str) -> Tensor:
        """A tensor in its shape inside such a vector."""
        shape = self._shapes[name]
        return self.padded(full, name)[: shape.numel()].view(shape)

    def own(self, full: Tensor, name: str, place: int) -> Tensor:
        """The piece of one rank inside such a vector."""
        return self.padded(full, name).view(self.num_ranks, -1)[place]

    def rows(self, tensors: Mapping[str, Tensor | None]) -> Tensor:
        """The rows of all ranks, [num_ranks, length]; a tensor that is missing counts as zeros."""
        rows = torch.zeros((self.num_ranks, self.length), dtype=torch.float32, device=self._device)
        targets, sources = [], []
        for name, (offset, length) in self._places.items():
            if (tensor := tensors[name]) is None:
                continue
            flat = tensor.reshape(-1)
            num_whole = flat.numel() // length if length else 0
            cut = rows[:, offset : offset + length]
            targets.append(cut[:num_whole])
            sources.append(flat[: num_whole * length].view(num_whole, length))
            if rest := flat.numel() - num_whole * length:
                targets.append(cut[num_whole, :rest])
                sources.append(flat[num_whole * length :])
        if targets:
            compat.copy_each(targets, sources)
        return rows

    def row(self, pieces: Mapping[str, Tensor]) -> Tensor:
        """A row of these pieces."""
        return torch.cat([pieces[name] for name in self._places])

    def fill(self, targets: Mapping[str, Tensor], rows: Tensor) -> None:
        """Put the rows of all ranks together into vectors as ``padded`` gives them."""
        compat.copy_each(
            [targets[name].view(self.num_ranks, -1) for name in self._places],
            [rows[:, offset : offset + length] for offset, length in self._places.values()],
        )
