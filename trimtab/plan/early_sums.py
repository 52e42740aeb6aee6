"""Which sums of gradients can start while the backward pass still goes on, and after which block?

A sum can start when the last of its gradients is complete: when the backward pass of the rank's last microbatch has left the
last of its blocks. What ``BUCKET`` and ``WHERE`` put into one sum decides how early that is. The order is that of the plan:
by block, then as the update has them. Ranks of one process group hold the same stages and run the same actions, so it is
one order for all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimtab.plan.meshes import group_size
from trimtab.plan.physical import EMBEDDING, HEAD, Plan
from trimtab.plan.pipelines import Action, ActionKind
from trimtab.plan.program import Operator, OperatorKind

BACKWARD = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
"""Actions that leave gradients: this release makes those of the weights together with that of the input."""

_SUMS = (OperatorKind.ALL_REDUCE, OperatorKind.REDUCE_SCATTER)
_GRADIENT = "acc:"


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlySum:
    """A sum of the update that starts before the backward pass has ended.

    Args:
        operator: Of the update.
        after: The block after whose last backward pass it starts, in order of computation: 0 the embedding, then the
            layers, then the head.
    """

    operator: Operator
    after: int


def early_sums(plan: Plan, actions: Sequence[Action]) -> tuple[EarlySum, ...]:
    """The early sums of a rank, in the order in which they start.

    Args:
        plan: With its update.
        actions: All that the rank does in a step, or in its last share, in order.
    """
    complete = _completion(plan, actions)
    last = max(complete.values(), default=0)
    ready: dict[str, int] = {}
    found: list[tuple[int, EarlySum]] = []
    blocks = {at: block for block, at in complete.items()}
    for operator in plan.update.operators:
        if not _may_start(plan, operator):
            continue
        each = [ready.get(name, _complete_at(plan, name, complete)) for name in operator.inputs]
        known = [at for at in each if at is not None]
        if len(known) == len(each) and max(known) < last:
            ready |= dict.fromkeys(operator.outputs, max(known))
            found.append((max(known), EarlySum(operator=operator, after=blocks[max(known)])))
    # Stable: sums that start together keep the order of the update, in which what is made comes before who takes it.
    return tuple(early for _, early in sorted(found, key=lambda item: item[0]))


def blocks_of_stage(plan: Plan, stage: int) -> tuple[int, ...]:
    """The blocks of a stage, in order of computation, as ``EarlySum.after`` counts them."""
    return tuple(_blocks(plan, stage))


def _blocks(plan: Plan, stage: int) -> Iterator[int]:
    if stage == 0:
        yield 0
    for layer, at in enumerate(plan.pipeline.stage_of_layer):
        if at == stage:
            yield 1 + layer
    if stage == plan.pipeline.num_stages - 1:
        yield 1 + len(plan.pipeline.stage_of_layer)


def _completion(plan: Plan, actions: Sequence[Action]) -> dict[int, int]:
    """For each block of the rank, when the gradients of its parameters are complete: a number that grows with time."""
    found: dict[int, int] = {}
    now = 0
    blocks_of = {stage: blocks_of_stage(plan, stage) for stage in {action.stage for action in actions}}
    for action in actions:
        if action.kind in BACKWARD:
            for block in reversed(blocks_of[action.stage]):
                now += 1
                found[block] = now
    return found


def _may_start(plan: Plan, operator: Operator) -> bool:
    """Whether it is a sum over ranks of one stage."""
    transfer = operator.transfer
    return (
        operator.kind in _SUMS
        and transfer is not None
        and not transfer.stages
        and plan.pipeline.axis not in transfer.axes
        and group_size(plan.mesh, transfer.axes) > 1
    )


def _complete_at(plan: Plan, name: str, complete: dict[int, int]) -> int | None:
    """When a gradient is complete; None for what is no sum over microbatches alone, such as that of a tied matrix."""
    parameter = plan.parameters.get(name.removeprefix(_GRADIENT)) if name.startswith(_GRADIENT) else None
    if parameter is None:
        return None
    ends = {EMBEDDING: 0, HEAD: 1 + len(plan.pipeline.stage_of_layer)}
    block = ends[parameter.block] if parameter.layer is None else 1 + parameter.layer
    return complete.get(block)
