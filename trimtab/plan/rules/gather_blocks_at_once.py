"""Stored parameters of a block travel together, and so do their gradients."""

from collections.abc import Hashable
from dataclasses import replace

from trimtab.plan.physical import Plan
from trimtab.plan.program import Block, Operator, OperatorKind
from trimtab.plan.rules.fusing import fuse


def gather_blocks_at_once(plan: Plan) -> Plan:
    """One all-gather and one reduce-scatter a block instead of one for each of its tensors.

    The latency of a collective is paid once for a layer, not nine times. Only what goes the same way in the same
    type is sent together.
    """
    return replace(plan, blocks=tuple(_gathered_at_once(block) for block in plan.blocks))


def _gathered_at_once(block: Block) -> Block:
    if not any(_stored_key(operator) for operator in (*block.gathers, *block.backward)):
        return block
    return replace(
        block, gathers=fuse(block.gathers, _stored_key), backward=fuse(block.backward, _stored_key)
    )


def _stored_key(operator: Operator) -> Hashable | None:
    is_gather = operator.kind is OperatorKind.ALL_GATHER and operator.inputs[0].startswith("stored:")
    is_scatter = operator.kind is OperatorKind.REDUCE_SCATTER and operator.dim_to == "stored"
    if not (is_gather or is_scatter) or operator.sends_one_tensor:
        return None
    return (operator.kind, operator.transfer, operator.variants, operator.dim_to, operator.because.line)
