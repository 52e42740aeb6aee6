"""Whether the bits of a run can be those of one device: read off what its plan adds, and where."""

from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator, OperatorKind
from trimtab.terms import Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Obstacle:
    """What keeps shares from being added in their fixed tree.

    Args:
        reason: In a sentence.
        line: The statement; None if none alone does.
    """

    reason: str
    line: Span | None = None


def obstacle_to_same_bits(plan: Plan) -> Obstacle | None:
    """Why shares of a plan cannot be told apart until they are added in one tree; None if they can."""
    return next(_obstacles(plan), None)


def _obstacles(plan: Plan) -> Iterator[Obstacle]:
    for by_axis in plan.bound.averages.values():
        for axis, averaging in by_axis.items():
            yield Obstacle(reason=f"AVERAGE makes replicas over {axis} differ by design", line=averaging.line)
    batch_axes = {*plan.bound.batch_axes}
    for parameter in plan.parameters.values():
        for axis, placement in parameter.computed:
            if axis in batch_axes and placement.dim == "experts":
                yield Obstacle(
                    reason=f"experts are split over {axis}, so that each computes samples of several shares at once"
                )
    for operator in _sums(plan):
        if not operator.inputs[0].startswith(("acc:", "tied:", "grad:")):
            continue
        for transfer in (operator.transfer, *(transfer for _, transfer in operator.variants)):
            if transfer is None or not batch_axes & {*transfer.axes}:
                continue
            if transfer.compress != "none":
                yield Obstacle(reason=f"COMPRESS {transfer.compress} changes what replicas add")
            if transfer.wire != "fp32":
                yield Obstacle(reason=f"gradients are rounded to {transfer.wire} on the wire")


def _sums(plan: Plan) -> Iterator[Operator]:
    kinds = (OperatorKind.ALL_REDUCE, OperatorKind.REDUCE_SCATTER)
    for operators in (*(block.backward for block in plan.blocks), plan.update.operators):
        yield from (operator for operator in operators if operator.kind in kinds)
