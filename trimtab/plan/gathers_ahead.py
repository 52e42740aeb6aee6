"""In which order does a rank gather the stored parameters of its blocks, so that one can be on its way ahead of its use?"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.plan.early_sums import BACKWARD, blocks_of_stage
from trimtab.plan.physical import EMBEDDING, HEAD, Plan
from trimtab.plan.pipelines import Action, ActionKind
from trimtab.plan.program import Block, OperatorKind, Phase


@dataclass(frozen=True, slots=True)
class BlockRun:
    """One pass of a block.

    Args:
        block: By its place in order of computation: 0 the embedding, then the layers, then the head.
        phase: FORWARD or BACKWARD.
    """

    block: int
    phase: Phase


def block_runs(plan: Plan, actions: Sequence[Action]) -> tuple[BlockRun, ...]:
    """The passes of a rank's blocks, in order; while one computes, the parameters of the next one are gathered.

    Args:
        plan: Of the rank.
        actions: All that it does in a step, in order.
    """
    found: list[BlockRun] = []
    for action in actions:
        blocks = blocks_of_stage(plan, action.stage)
        if action.kind is ActionKind.FORWARD:
            found += [BlockRun(number, Phase.FORWARD) for number in blocks]
        elif action.kind in BACKWARD:
            found += [BlockRun(number, Phase.BACKWARD) for number in reversed(blocks)]
    return tuple(found)


def is_gathered_ahead(block: Block) -> bool:
    """Whether a block has parameters to gather, and does nothing else before it runs."""
    kinds = {operator.kind for operator in block.gathers}
    return kinds == {OperatorKind.ALL_GATHER}


def block_at(plan: Plan, number: int) -> Block:
    """The program of a block, by its place in order of computation."""
    ends = {0: EMBEDDING, 1 + len(plan.pipeline.stage_of_layer): HEAD}
    if number in ends:
        return next(block for block in plan.blocks if block.name == ends[number])
    return plan.block_of(number - 1)
