"""Where gradients are added up: those that a step sums together lie behind each other and travel without being packed."""

import torch
from torch import Tensor

from trimtab.plan.lifetimes import sums_in_place
from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator, OperatorKind
from trimtab.runtime.lowering.extents import Layouts
from trimtab.runtime.lowering.types import DTYPES


class Homes:
    """Vectors of one rank that stay from step to step, one for each sum of gradients over ranks.

    Args:
        plan: Whose update sums them.
        layouts: Of its mesh.
        rank: Own.
    """

    def __init__(self, plan: Plan, layouts: Layouts, rank: int) -> None:
        self._values, self._layouts, self._rank = plan.update.values, layouts, rank
        self._sums = sums_in_place(plan.update)
        self._summands = {
            part: operator.outputs[0]
            for operator in plan.update.operators
            if operator.kind is OperatorKind.SUM
            for part in operator.inputs
        }
        self._found: dict[str, Tensor] = {}

    def of(self, name: str) -> Tensor | None:
        """Where a value of the update lies; None for one that is not summed with others."""
        if name not in self._sums:
            return None
        name = self._summands.get(name, name)
        if name not in self._found:
            self._settle(self._sums[name])
        return self._found[name]

    def forget(self) -> None:
        """Let the vectors go; whoever asks next gets others."""
        self._found.clear()

    def _settle(self, operator: Operator) -> None:
        values = [self._values[name] for name in operator.inputs]
        extents = [
            self._layouts.extent(value.dims, value.shape, value.placements, self._rank) for value in values
        ]
        shapes = [torch.Size(extent.shape) for extent in extents]
        flat = torch.empty(sum(shape.numel() for shape in shapes), dtype=DTYPES[values[0].dtype])
        pieces = torch.split(flat, [shape.numel() for shape in shapes])
        self._found |= {
            name: piece.view(shape)
            for name, piece, shape in zip(operator.inputs, pieces, shapes, strict=True)
        }
