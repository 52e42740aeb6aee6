"""A block under construction: values with their types, operators in order, the change of layouts between them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from trimtab.plan.placements import PlacementKind, Placements
from trimtab.plan.program import Because, Operator, OperatorKind, Transfer, Value
from trimtab.plan.transitions import Step, transitions

Reasoner = Callable[[Step], Because]
"""Why a tensor changes its layout."""


class BlockBuilder:
    """Values and operators of one block, in the order in which they are made.

    Args:
        dtype: That the block computes in; what travels between its operators has it.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.values: dict[str, Value] = {}
        self.operators: list[Operator] = []
        self.result = ""
        """The value that the next block goes on with."""
        self._copies: dict[str, int] = {}
        self._made: dict[tuple[str, Placements], str] = {}

    def value(
        self,
        name: str,
        dims: tuple[str, ...],
        shape: tuple[int, ...],
        placements: Placements,
        dtype: str | None = None,
    ) -> str:
        """A new value; returns its name."""
        assert name not in self.values, f"{name} is made twice"
        self.values[name] = Value(
            name=name, dims=dims, shape=shape, dtype=dtype or self.dtype, placements=placements
        )
        return name

    def like(self, name: str, other: str, placements: Placements) -> str:
        """A new value with dims, shape and dtype of another."""
        found = self.values[other]
        return self.value(name, found.dims, found.shape, placements, found.dtype)

    def add(
        self,
        kind: OperatorKind,
        inputs: Sequence[str],
        outputs: Sequence[str],
        because: Because,
        *,
        parameters: Sequence[str] = (),
        transfer: Transfer | None = None,
        call: int = 0,
        at_once: int = 0,
    ) -> None:
        """An operator that computes; with a transfer if it sends while it does, with a call if it draws.

        With tokens at once if it makes logits of some at a time.
        """
        self.operators.append(
            Operator(
                kind=kind,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                parameters=tuple(parameters),
                because=because,
                transfer=transfer,
                call=call,
                at_once=at_once,
            )
        )

    def laid_out(self, name: str, target: Placements, why: Reasoner) -> str:
        """The value in another layout: itself, or a copy that collectives make, once for all who need it.

        Raises: InterleavedError if no sequence of steps leads there.
        """
        if self.values[name].placements.items == target.items:
            return name
        for step in transitions(self.values[name].placements, target):
            if (known := self._made.get((name, step.result))) is not None:
                name = known
                continue
            copy = self.like(self._copy_name(name), name, step.result)
            is_sent = step.kind is not OperatorKind.SLICE
            self.operators.append(
                Operator(
                    kind=step.kind,
                    inputs=(name,),
                    outputs=(copy,),
                    because=why(step),
                    transfer=Transfer(axes=step.axes, wire=self.values[name].dtype) if is_sent else None,
                    cuts=() if is_sent else step.axes,
                    dim_from=step.before.dim,
                    dim_to=step.after.dim or _stored(step.after.kind),
                )
            )
            self._made[name, step.result] = copy
            name = copy
        return name

    def use_maximum(self) -> None:
        """Let the reduction that was added last take the largest instead of the sum."""
        last = self.operators[-1]
        if last.transfer is not None:
            self.operators[-1] = replace(last, transfer=replace(last.transfer, operation="max"))

    def _copy_name(self, name: str) -> str:
        # The gradient of the copy x@1 is grad:x@1; copies of a gradient are told apart by another mark.
        mark = "~" if name.startswith(("grad:", "sum:")) else "@"
        base = name.partition(mark)[0]
        self._copies[base] = self._copies.get(base, 0) + 1
        return f"{base}{mark}{self._copies[base]}"


def base_name(name: str) -> str:
    """The value that a copy in another layout was made of."""
    return name.partition("@")[0]


def _stored(kind: PlacementKind) -> str | None:
    return "stored" if kind is PlacementKind.STORED else None
