"""Gradients that are summed once a step travel in buckets."""

from collections.abc import Hashable
from dataclasses import replace

from trimtab.plan.physical import Plan
from trimtab.plan.placements import local_elements
from trimtab.plan.program import Operator, OperatorKind
from trimtab.plan.rules.fusing import fuse
from trimtab.plan.tables import BYTES_OF
from trimtab.plan.traffic import holders


def bucket_gradients(plan: Plan) -> Plan:
    """One collective for all gradients that go the same way, or as many as BUCKET makes of them.

    A bucket is filled in the order of the parameters and closed before it would grow beyond its size; a tensor
    that is larger than a bucket has one to itself.
    """
    values, sizes = plan.update.values, plan.axis_sizes

    def size(operator: Operator) -> int:
        assert operator.transfer is not None, "sums are sent"
        value = values[operator.inputs[0]]
        elements = local_elements(value.dims, value.shape, value.placements, sizes)
        return elements * BYTES_OF[operator.transfer.wire]

    def key(operator: Operator) -> Hashable | None:
        kind = _sum_key(operator)
        return None if kind is None else (kind, holders(plan, operator.inputs[0]))

    operators = fuse(plan.update.operators, key, size=size)
    return replace(plan, update=replace(plan.update, operators=operators))


def _sum_key(operator: Operator) -> Hashable | None:
    if operator.kind not in (OperatorKind.ALL_REDUCE, OperatorKind.REDUCE_SCATTER):
        return None
    transfer = operator.transfer
    if transfer is None or transfer.stages or operator.sends_one_tensor:
        return None
    if not operator.inputs[0].startswith(("acc:", "tied:")):
        return None
    return (operator.kind, transfer, operator.variants, operator.dim_to, operator.because.line)
