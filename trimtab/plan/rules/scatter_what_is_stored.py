"""A sum of which every rank keeps only its own piece needs to be scattered, not made everywhere."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trimtab.plan.physical import Plan, Update
from trimtab.plan.program import Operator, OperatorKind, Value


def scatter_what_is_stored(plan: Plan) -> Plan:
    """An all-reduce followed by nothing but a slice into stored pieces becomes a reduce-scatter.

    This is what makes ZeRO-1 send no more than plain data parallelism. Axes that the slice does not cut keep
    their all-reduce, on the piece.
    """
    values = dict(plan.update.values)
    operators = tuple(_rewritten(plan.update, values))
    return replace(plan, update=replace(plan.update, values=values, operators=operators))


def _rewritten(update: Update, values: dict[str, Value]) -> Iterator[Operator]:
    uses = Counter(name for operator in update.operators for name in operator.inputs)
    slices = {
        operator.inputs[0]: operator
        for operator in update.operators
        if operator.kind is OperatorKind.SLICE
        and operator.dim_to == "stored"
        and uses[operator.inputs[0]] == 1
    }
    replaced = set()
    for operator in update.operators:
        cut = slices.get(operator.outputs[0]) if operator.kind is OperatorKind.ALL_REDUCE else None
        if cut is not None and _can_scatter(operator, cut.cuts):
            replaced.add(cut.inputs[0])
            yield from _scattered(operator, cut, values)
        elif operator.kind is OperatorKind.SLICE and operator.inputs[0] in replaced:
            continue
        else:
            yield operator


def _can_scatter(operator: Operator, cuts: Sequence[str]) -> bool:
    transfer = operator.transfer
    return (
        transfer is not None
        and not transfer.stages
        and not operator.variants
        and transfer.route not in ("tree", "recursive_doubling")
        and transfer.compress not in ("topk", "powersgd")
        and set(cuts) <= set(transfer.axes)
    )


def _scattered(operator: Operator, cut: Operator, values: dict[str, Value]) -> Iterator[Operator]:
    transfer = operator.transfer
    assert transfer is not None, "sums are sent"
    rest = tuple(axis for axis in transfer.axes if axis not in cut.cuts)
    (source,), (target,) = operator.inputs, cut.outputs
    scatter = replace(
        operator,
        kind=OperatorKind.REDUCE_SCATTER,
        outputs=(target,),
        transfer=replace(transfer, axes=cut.cuts),
        dim_to="stored",
    )
    if not rest:
        yield scatter
        return
    piece = f"{target}/piece"
    placements = values[source].placements
    for axis in cut.cuts:
        placements = placements.put(axis, values[target].placements.on(axis))
    values[piece] = replace(values[target], name=piece, placements=placements)
    yield replace(scatter, outputs=(piece,))
    yield replace(operator, inputs=(piece,), outputs=(target,), transfer=replace(transfer, axes=rest))
