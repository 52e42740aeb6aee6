"""How long a rank waits for the collectives of its update, where sums of gradients start during its last backward pass."""

from collections.abc import Mapping, Sequence

from trimtab.catalog import Cluster
from trimtab.cost.communication import collective_time
from trimtab.cost.counts import Counts
from trimtab.cost.stage_times import Passes
from trimtab.plan.early_sums import BACKWARD, blocks_of_stage, early_sums
from trimtab.plan.physical import EMBEDDING, HEAD, Plan
from trimtab.plan.pipelines import Action, ActionKind
from trimtab.plan.program import Phase


def update_communication(
    plan: Plan, counts: Counts, number: int, cluster: Cluster, passes: Sequence[Passes]
) -> tuple[float, float]:
    """Seconds of the collectives of an update that a rank waits for, and those that run beside its computation.

    A sum starts when its gradients are complete and the one before it on the same ranks has ended; it costs what it still
    takes when the backward pass is over. Everything else in the update is waited for. Bubbles hide nothing here.

    Args:
        plan: Of the rank.
        counts: Of the plan.
        number: Of the rank's group.
        cluster: Whose links carry it.
        passes: By stage.
    """
    seconds: dict[tuple[str, ...], float] = {}
    for use in counts.uses[number]:
        if use.traffic.phase is Phase.UPDATE:
            name = use.traffic.operator.outputs
            seconds[name] = seconds.get(name, 0.0) + collective_time(use, cluster).seconds * use.runs
    actions = _last_actions(counts, counts.groups[number].place)
    complete, end_s = _completion(plan, counts, actions, passes)
    free: dict[tuple[str, ...], float] = {}
    made: dict[str, float] = {}
    beside_s = 0.0
    for early in early_sums(plan, actions):
        operator = early.operator
        assert operator.transfer is not None, "sums are sent"
        took_s = seconds.pop(operator.outputs, 0.0)
        start_s = max(
            complete[early.after],
            free.get(operator.transfer.axes, 0.0),
            *(made.get(name, 0.0) for name in operator.inputs),
        )
        free[operator.transfer.axes] = start_s + took_s
        made |= dict.fromkeys(operator.outputs, start_s + took_s)
        beside_s += took_s
    late_s = max(0.0, max(free.values(), default=0.0) - end_s)
    return sum(seconds.values()) + late_s, beside_s - late_s


def _last_actions(counts: Counts, place: int) -> Sequence[Action]:
    """What a rank does in its last share; without a pipeline, with its last microbatch."""
    if counts.actions is not None:
        return counts.actions[place]
    return [Action(kind=kind, stage=0, microbatch=0) for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)]


def _completion(
    plan: Plan, counts: Counts, actions: Sequence[Action], passes: Sequence[Passes]
) -> tuple[Mapping[int, float], float]:
    """For each block when its gradients are complete, and when all are: seconds from the first action on."""
    found: dict[int, float] = {}
    now_s = 0.0
    stages = {action.stage for action in actions}
    shares_of = {stage: _shares(plan, counts, stage) for stage in stages}
    for action in actions:
        stage = passes[action.stage]
        if action.kind is ActionKind.FORWARD:
            now_s += stage.forward.total_s
        elif action.kind in BACKWARD:
            backward_s = stage.backward_input.total_s + stage.backward_weight.total_s
            for block, share in reversed(shares_of[action.stage].items()):
                now_s += backward_s * share
                found[block] = now_s
    return found, now_s


def _shares(plan: Plan, counts: Counts, stage: int) -> dict[int, float]:
    """For each block of a stage, in order of computation, its part of a backward pass, by FLOPs."""
    work = {block: _backward_flops(plan, counts, stage, block) for block in blocks_of_stage(plan, stage)}
    total = sum(work.values())
    return {block: flops / total if total else 1 / len(work) for block, flops in work.items()}


def _backward_flops(plan: Plan, counts: Counts, stage: int, number: int) -> float:
    ends = {0: EMBEDDING, 1 + len(plan.pipeline.stage_of_layer): HEAD}
    name = ends.get(number)
    block = plan.block_of(number - 1) if name is None else next(b for b in plan.blocks if b.name == name)
    flops = counts.flops[block.name][stage]
    together = flops.recompute + flops.backward_input + flops.backward_weight
    return float(together.causal) / max(1, plan.num_instances(block, stage))
