"""One operator that computes, at one site: what it gives, and what it leaves for its gradient."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trimtab.plan.program import Operator
from trimtab.runtime.lowering.closed_forms import ClosedTape, closed_form
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
        self._kind, self._pieces = operator.kind, pieces
        self._names = [*operator.inputs, *(_parameter_key(name) for name in operator.parameters)]
        self._output = operator.outputs[0]
        self._stays = frozenset((*stays, *self._names[len(operator.inputs) :]))
        self._form: _Form | None = None

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Tape | ClosedTape]:
        """The output and its tape.

        Args:
            tensors: Of its inputs, then of its parameters.
        """
        if self._form is None:
            self._form = self._chosen(tensors)
        return self._form(tensors)

    def _chosen(self, tensors: Sequence[Tensor]) -> "_Form":
        closed = closed_form(
            self._kind,
            self._pieces,
            self._names,
            self._output if self._output in self._stays else "",
            tensors,
        )
        if closed is not None:
            return closed
        compute = computation(self._kind, self._pieces)
        return lambda tensors: record(
            compute, tensors, self._names, self._output, stays=self._stays.__contains__
        )


_Form = Callable[[Sequence[Tensor]], tuple[Tensor, Tape | ClosedTape]]


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
