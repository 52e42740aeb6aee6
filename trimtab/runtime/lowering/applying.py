"""One operator that computes, at one site: what it gives, and what it leaves for its gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.plan.program import Operator, OperatorKind
from trimtab.runtime.linear import fast_linear, fast_linear_gradients, takes_fast_product
from trimtab.runtime.lowering.computing import Pieces, computation
from trimtab.runtime.lowering.tape import Tape, record


class Applied:
    """A forward operator.

    Args:
        operator: What is computed.
        pieces: Where its tensors stand.
        stays: Values, beside parameters, that can be looked up by name when the gradient is made.
    """

    def __init__(self, operator: Operator, pieces: Pieces, *, stays: frozenset[str]) -> None:
        self._compute = computation(operator.kind, pieces)
        self._names = [*operator.inputs, *(_parameter_key(name) for name in operator.parameters)]
        self._output = operator.outputs[0]
        self._stays = frozenset((*stays, *self._names[len(operator.inputs) :]))
        self._is_linear = operator.kind is OperatorKind.LINEAR and pieces.dtype is torch.float32

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Tape | None]:
        """The output and its tape; without one the gradient is that of ``linear_gradients``.

        Args:
            tensors: Of its inputs, then of its parameters.
        """
        if self._is_linear and all(takes_fast_product(tensor) for tensor in tensors):
            return fast_linear(*tensors), None
        return record(self._compute, tensors, self._names, self._output, stays=self._stays.__contains__)


def linear_gradients(gradient: Tensor, x: Tensor, weight: Tensor, *, is_biased: bool) -> list[Tensor]:
    """Gradients of a product that left no tape: of ``x``, of the matrix and, if there is one, of the bias."""
    of_x, of_weight, of_bias = fast_linear_gradients(gradient, x, weight, is_biased=is_biased)
    return [of_x, of_weight] if of_bias is None else [of_x, of_weight, of_bias]


def added(tensors: Sequence[Tensor], home: Tensor | None = None) -> Tensor:
    """The sum of two tensors or more, added in order; in a place of its own, if it has one."""
    total = torch.add(tensors[0], tensors[1], out=home)
    for tensor in tensors[2:]:
        total += tensor
    return total


_PARAMETER = "parameter "


def _parameter_key(name: str) -> str:
    """What a parameter is called beside the values of a block."""
    return f"{_PARAMETER}{name}"


def parameter_of(name: str) -> str:
    """The parameter of such a name; empty for that of a value."""
    return name.removeprefix(_PARAMETER) if name.startswith(_PARAMETER) else ""
