"""How long a pipeline takes, again and again with other times: what waits for what is worked out once."""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from trimtab.plan.pipelines.actions import Action, ActionKind, PipelineActions
from trimtab.plan.pipelines.deadlock import deadlock_of
from trimtab.plan.pipelines.methods import StageSchedule
from trimtab.plan.pipelines.results import Result, inputs_of, output_of, rank_of_each_stage
from trimtab.plan.pipelines.schedules import actions_of
from trimtab.plan.pipelines.simulation import StageTimes

_KEPT = 64
"""Pipelines that are kept: those of one search."""

_NOBODY = -1


@dataclass(frozen=True, slots=True)
class WiredPipeline:
    """The actions of a pipeline in an order in which each comes after what it waits for.

    Args:
        num_stages: That have times.
        durations: Of each action, its place in the list of ``_durations``.
        before: Of each action, the one that its rank runs before it; -1 for its first.
        inputs: Of each action, up to two that it waits for, with the border that their results cross; -1 for none.
    """

    num_stages: int
    durations: tuple[int, ...]
    before: tuple[int, ...]
    inputs: tuple[tuple[int, int, int, int], ...]

    def makespan_s(self, times: StageTimes) -> float:
        """Seconds from the first action to the end of the last: ``simulate(actions, times=times).makespan_s``."""
        durations = _durations(times)
        hops = (*times.hop_s, 0.0)  # at -1: no border is crossed
        ends = [0.0] * len(self.durations)
        for number, (duration, before, (first, first_hop, second, second_hop)) in enumerate(
            zip(self.durations, self.before, self.inputs, strict=True)
        ):
            start_s = ends[before] if before >= 0 else 0.0
            if first >= 0:
                arrived_s = ends[first] + hops[first_hop]
                if arrived_s > start_s:
                    start_s = arrived_s
                if second >= 0:
                    arrived_s = ends[second] + hops[second_hop]
                    if arrived_s > start_s:
                        start_s = arrived_s
            ends[number] = start_s + durations[duration]
        return max(ends, default=0.0)


@lru_cache(maxsize=_KEPT)
def wired_pipeline(
    schedule: StageSchedule, *, ranks: int, stages_per_rank: int, microbatches: int
) -> WiredPipeline:
    """The pipeline of a stage schedule.

    Raises: RefusedShapeError as ``actions_of``.
    """
    actions = actions_of(schedule, ranks=ranks, stages_per_rank=stages_per_rank, microbatches=microbatches)
    return wired(actions, num_stages=ranks * stages_per_rank)


def wired(actions: PipelineActions, *, num_stages: int) -> WiredPipeline:
    """Any actions, worked out once.

    Raises: DeadlockError as ``simulate``.
    """
    microbatches = 1 + max((action.microbatch for order in actions for action in order), default=0)
    plans = _wiring(actions, num_stages, microbatches)
    made_by: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}
    positions, newest = [0] * len(actions), [_NOBODY] * len(actions)
    durations: list[int] = []
    before: list[int] = []
    inputs: list[tuple[int, int, int, int]] = []
    runnable = deque(range(len(actions)))
    while runnable:
        rank = runnable.popleft()
        order, position, last = actions[rank], positions[rank], newest[rank]
        for action in islice(order, position, None):
            wiring, microbatch = plans[action.kind, action.stage], action.microbatch
            wires = [_NOBODY] * 4
            for place, (result, hop) in enumerate(wiring.inputs):
                maker = made_by.get(result + microbatch)
                if maker is None:
                    waiting.setdefault(result + microbatch, []).append(rank)
                    break
                wires[2 * place : 2 * place + 2] = maker, hop
            else:
                number = len(durations)
                durations.append(wiring.duration)
                before.append(last)
                inputs.append((wires[0], wires[1], wires[2], wires[3]))
                last, position = number, position + 1
                if wiring.output is not None:
                    made_by[wiring.output + microbatch] = number
                    runnable.extend(waiting.pop(wiring.output + microbatch, ()))
                continue
            break
        positions[rank], newest[rank] = position, last
    if any(position < len(order) for position, order in zip(positions, actions, strict=True)):
        raise deadlock_of(actions, positions, num_stages=num_stages)
    return WiredPipeline(num_stages, tuple(durations), tuple(before), tuple(inputs))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wiring:
    """What all actions of a kind and stage have in common; a microbatch is added to the number of a result.

    Args:
        duration: Place in the list of ``_durations``.
        inputs: Results that they wait for, with the border that each crosses, or -1.
        output: The result that they make; None if nobody waits for it.
    """

    duration: int
    inputs: tuple[tuple[int, int], ...]
    output: int | None


def _wiring(
    actions: PipelineActions, num_stages: int, microbatches: int
) -> dict[tuple[ActionKind, int], _Wiring]:
    rank_of = rank_of_each_stage(actions)

    def number(result: Result) -> int:
        return (result.is_gradient * num_stages + result.stage) * microbatches

    def wiring(kind: ActionKind, stage: int) -> _Wiring:
        action = Action(kind=kind, stage=stage, microbatch=0)
        output = output_of(action)
        return _Wiring(
            duration=stage + _KINDS.index(kind) * num_stages,
            inputs=tuple(
                (
                    number(result),
                    _NOBODY if rank_of.get(result.stage) == rank_of.get(stage) else min(stage, result.stage),
                )
                for result in inputs_of(action, num_stages)
            ),
            output=None if output is None else number(output),
        )

    return {(kind, stage): wiring(kind, stage) for kind in _KINDS for stage in range(num_stages)}


_KINDS = (ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT, ActionKind.BACKWARD)


def _durations(times: StageTimes) -> list[float]:
    whole = [
        inputs + weights
        for inputs, weights in zip(times.backward_input_s, times.backward_weight_s, strict=True)
    ]
    return [*times.forward_s, *times.backward_input_s, *times.backward_weight_s, *whole]
