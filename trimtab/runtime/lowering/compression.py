"""Sums of which only a part is sent; what is left over joins the next gradient (error feedback).

| name | sent | left over |
|---|---|---|
| int8 | whole numbers that n ranks can add in a byte, on a scale that all agree on | the rounding |
| topk | the largest elements with their places | all others |
| powersgd | two thin matrices (Vogels et al. 2019) | what their product is not |
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trimtab.plan.program import Transfer
from trimtab.plan.traffic import topk_elements
from trimtab.runtime.lowering.routes import Route
from trimtab.runtime.lowering.wires import Line

_LARGEST = 127
"""Of a signed byte."""

Key = tuple[str, ...]
"""What is summed together: the block at work, one layer told from another, then the names of the tensors."""


@dataclass(kw_only=True, slots=True)
class Compressor:
    """Sums with loss, on one rank; keeps what was left over, by what is summed."""

    residuals: dict[Key, Tensor] = field(default_factory=dict)
    factors: dict[Key, Tensor] = field(default_factory=dict)
    is_ahead: bool = False
    """Whether a sum has changed what is kept since ``settle``."""

    def forget(self) -> None:
        """Begin anew: what was left over belongs to other weights."""
        self.residuals.clear()
        self.factors.clear()
        self.is_ahead = False

    def settle(self) -> None:
        """The step whose sums these were is applied."""
        self.is_ahead = False

    @staticmethod
    def takes(transfer: Transfer) -> bool:
        """Whether a transfer is one of these."""
        return transfer.compress in ("int8", "topk", "powersgd")

    def held(self) -> list[Tensor]:
        """What is kept between steps."""
        return [*self.residuals.values(), *self.factors.values()]

    def all_reduce(
        self, line: Line, route: Route, transfer: Transfer, key: Key, tensors: Sequence[Tensor]
    ) -> list[Tensor]:
        """The sum over all places, about."""
        shapes = [tensor.shape for tensor in tensors]
        flat = torch.cat([tensor.reshape(-1).float() for tensor in tensors])
        flat = self._with_residual(key, flat)
        match transfer.compress:
            case "int8":
                total, sent = _whole_numbers(line, route, flat)
            case "topk":
                total, sent = _largest(line, route, flat, transfer.compress_argument)
            case _:
                total, sent = self._thin(line, route, key, flat.view(shapes[0]), transfer)
        self._keep(key, flat - sent)
        return [
            piece.view(shape)
            for piece, shape in zip(
                torch.split(total, [shape.numel() for shape in shapes]), shapes, strict=True
            )
        ]

    def reduce_scatter(
        self, line: Line, route: Route, transfer: Transfer, key: Key, chunks: Sequence[Tensor]
    ) -> Tensor:
        """The sum of what all places have for this one, about."""
        flat = self._with_residual(key, torch.cat(list(chunks)).float())
        size = chunks[0].numel()
        if transfer.compress == "topk":
            total, sent = _largest(line, route, flat, transfer.compress_argument)
            own = torch.split(total, size)[line.place]
        else:
            numbers, scale = _rounded(line, flat)
            own = route.reduce_scatter(line, torch.split(numbers, size), "sum").float() * scale
            sent = numbers.float() * scale
        self._keep(key, flat - sent)
        return own

    def _with_residual(self, key: Key, flat: Tensor) -> Tensor:
        # Zeros are added like any others: they turn -0.0 into 0.0, here and after a load.
        return flat + self.residuals.get(key, 0.0)

    def _keep(self, key: Key, left: Tensor) -> None:
        self.residuals[key], self.is_ahead = left, True

    def _thin(
        self, line: Line, route: Route, key: Key, matrix: Tensor, transfer: Transfer
    ) -> tuple[Tensor, Tensor]:
        """The product of two thin matrices in place of a matrix; a vector travels as it is."""
        shape = factor_shape(matrix.shape, transfer)
        if shape is None:
            return route.all_reduce(line, matrix.reshape(-1).clone(), "sum"), matrix.reshape(-1)
        columns, rank = shape
        matrix = matrix.reshape(-1, columns)
        right = self.factors.get(key)
        if right is None:
            right = first_factor(len(matrix), columns, rank).to(matrix)
        left = route.all_reduce(line, (matrix @ right).reshape(-1), "sum").view(-1, rank)
        left = torch.linalg.qr(left).Q
        own = matrix.T @ left
        right = route.all_reduce(line, own.reshape(-1).clone(), "sum").view(columns, rank)
        self.factors[key] = right
        return (left @ right.T).reshape(-1), (left @ own.T).reshape(-1)


def factor_shape(shape: Sequence[int], transfer: Transfer) -> tuple[int, int] | None:
    """Rows and columns of the thin matrix that PowerSGD goes on with; None where two of them would not be smaller.

    >>> factor_shape((8, 4, 10), Transfer(axes=("dp",), compress="powersgd", compress_argument=2.0))
    (10, 2)
    """
    rank, columns = int(transfer.compress_argument or 1), shape[-1]
    rows = math.prod(shape[:-1])
    return (columns, rank) if len(shape) > 1 and rank * (rows + columns) < rows * columns else None


def first_factor(rows: int, columns: int, rank: int) -> Tensor:
    """What PowerSGD begins with, [columns, rank]; all places draw the same."""
    generator = torch.Generator("cpu").manual_seed(rows * 65_537 + columns)
    return torch.randn((columns, rank), generator=generator, device="cpu").to(torch.empty(0).device)


def _rounded(line: Line, flat: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers small enough that their sum over all places fits a byte, and their scale, the same everywhere."""
    largest = line.agree_on_largest(flat.abs().amax())
    scale = (largest / (_LARGEST // line.size)).clamp_min(torch.finfo(torch.float32).tiny)
    return (flat / scale).round().to(torch.int8), scale


def _whole_numbers(line: Line, route: Route, flat: Tensor) -> tuple[Tensor, Tensor]:
    numbers, scale = _rounded(line, flat)
    sent = numbers.float() * scale
    return route.all_reduce(line, numbers, "sum").float() * scale, sent


def _largest(line: Line, route: Route, flat: Tensor, fraction: float | None) -> tuple[Tensor, Tensor]:
    """The sum of every place's largest elements."""
    count = topk_elements(flat.numel(), fraction)
    places = flat.abs().topk(count).indices
    found = flat[places]
    packed = torch.cat([found.view(torch.int32), places.to(torch.int32)])
    total = torch.zeros_like(flat)
    for row in route.all_gather(line, packed):
        numbers, at = torch.split(row, count)
        total.index_add_(0, at.long(), numbers.view(torch.float32))
    sent = torch.zeros_like(flat)
    sent[places] = found
    return total, sent
