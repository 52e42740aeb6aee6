"""Which collectives sum the gradient of each parameter."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator, OperatorKind, Transfer

_SUMS = (OperatorKind.ALL_REDUCE, OperatorKind.REDUCE_SCATTER)
_GRADIENT = re.compile(r"(?:grad:param|acc|tied):([^#@~/]+)")
"""The parameter in the name of a gradient: ``grad:param:mlp.up.weight~1``, ``acc:embedding.weight#head``."""


def sums_of_gradients(plan: Plan) -> Mapping[str, Sequence[Operator]]:
    """By parameter, the collectives that sum its gradient over ranks, in the order in which they run."""
    found: dict[str, list[Operator]] = {name: [] for name in plan.parameters}
    for block in plan.blocks:
        prefixes = [f"layers.{layer}." for layer in block.layers] or [""]
        for operator, name in _sums(block.backward):
            for prefix in prefixes:
                found[f"{prefix}{name}"].append(operator)
    for operator, name in _sums(plan.update.operators):
        found[name].append(operator)
    return found


def _sums(operators: Iterable[Operator]) -> Iterable[tuple[Operator, str]]:
    for operator in operators:
        if operator.kind in _SUMS:
            for value in operator.inputs:
                if match := _GRADIENT.match(value):
                    yield operator, match[1]


def over_axes(sums: Iterable[Operator], value: Callable[[Transfer], str | None]) -> str | None:
    """What all sums have in common, else what each has: ``tree``, or ``dp: tree, site: ring``.

    Where process groups differ, what they do is joined by ``|``; None if there is nothing to say.
    """
    by_axes: dict[str, str] = {}
    for operator in sums:
        assert operator.transfer is not None, "sums are sent"
        ways = [operator.transfer, *(way for _, way in operator.variants)]
        told = dict.fromkeys(text for way in ways if (text := value(way)) is not None)
        if told:
            by_axes[" ".join(operator.transfer.axes)] = " | ".join(told)
    if len(set(by_axes.values())) == 1:
        return next(iter(by_axes.values()))
    return ", ".join(f"{axes}: {told}" for axes, told in by_axes.items()) or None
