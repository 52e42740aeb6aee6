"""How the sums of gradients travel: the REDUCE lines put onto the collectives that the types demand."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from trimtab.plan.block_builder import BlockBuilder
from trimtab.plan.bound import Bound, Reduction
from trimtab.plan.program import Because, Operator, OperatorKind, Parameter, Transfer
from trimtab.plan.tables import Table

_SUMS = (OperatorKind.ALL_REDUCE, OperatorKind.REDUCE_SCATTER)
_ALL_GROUPS: Mapping[tuple[int, ...], Reduction] = {(): Reduction()}


SUM_OF_GRADIENTS = "sum of gradients"
"""Why a collective of the update is there that adds up gradients over ranks."""


def apply_reductions(
    operators: Iterable[Operator], parameter: Parameter, bound: Bound, builder: BlockBuilder
) -> list[Operator]:
    """The operators, with each sum over ranks on the route and in the type that the lines of its row say.

    A sum over several axes stays one if all of them are decided alike, and becomes one an axis otherwise.
    """
    found: list[Operator] = []
    for operator in operators:
        found += _applied(operator, parameter, bound, builder) if operator.kind in _SUMS else [operator]
    return found


def _applied(
    operator: Operator, parameter: Parameter, bound: Bound, builder: BlockBuilder
) -> Iterator[Operator]:
    assert operator.transfer is not None, "sums are sent"
    axes = operator.transfer.axes
    by_axis = {axis: _reductions_on(parameter, axis, bound) for axis in axes}
    first = by_axis[axes[0]]
    is_alike = all(len(reductions) == 1 for reductions in by_axis.values()) and all(
        list(reductions.values()) == list(first.values()) for reductions in by_axis.values()
    )
    if len(axes) == 1 or is_alike:
        yield _with(operator, first, parameter, bound, axes)
        return
    name = operator.inputs[0]
    last = builder.values[operator.outputs[0]].placements
    for index, axis in enumerate(axes):
        if index == len(axes) - 1:
            output = operator.outputs[0]
        else:
            placements = builder.values[name].placements.put(axis, last.on(axis))
            output = builder.like(f"{operator.outputs[0]}/{axis}", name, placements)
        single = replace(operator, inputs=(name,), outputs=(output,))
        yield _with(single, by_axis[axis], parameter, bound, (axis,))
        name = output


def _reductions_on(parameter: Parameter, axis: str, bound: Bound) -> Mapping[tuple[int, ...], Reduction]:
    return bound.reductions.get(parameter.name, {}).get(axis, _ALL_GROUPS)


def _with(
    operator: Operator,
    reductions: Mapping[tuple[int, ...], Reduction],
    parameter: Parameter,
    bound: Bound,
    axes: Sequence[str],
) -> Operator:
    transfers = {
        groups: _transfer(reduction, parameter, bound, axes) for groups, reduction in reductions.items()
    }
    (main, *_) = sorted(transfers, key=len, reverse=True)
    others = tuple((groups, transfer) for groups, transfer in transfers.items() if groups != main)
    lines = tuple(reductions[groups].line for groups, _ in others)
    line = reductions[main].line or bound.data_line(axes[0]) or operator.because.line
    because = Because(reason=SUM_OF_GRADIENTS, line=line)
    return replace(operator, transfer=transfers[main], variants=others, variant_lines=lines, because=because)


def _transfer(reduction: Reduction, parameter: Parameter, bound: Bound, axes: Sequence[str]) -> Transfer:
    return Transfer(
        axes=tuple(axes),
        route=reduction.route.value,
        levels=reduction.levels,
        wire=reduction.wire.value or parameter.dtypes[Table.GRADS.value],
        compress=reduction.compress.value,
        compress_argument=reduction.compress_argument,
        is_sealed=bound.is_sealed(Table.GRADS, parameter.name, axes),
        bucket_bytes=reduction.bucket_bytes.value,
    )
