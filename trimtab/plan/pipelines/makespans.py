"""How long a pipeline takes, again and again with other times: what waits for what is worked out once."""

from dataclasses import dataclass
from functools import lru_cache

from trimtab.plan.pipelines.actions import ActionKind, PipelineActions
from trimtab.plan.pipelines.methods import StageSchedule
from trimtab.plan.pipelines.results import Result, inputs_of, output_of, rank_of_each_stage
from trimtab.plan.pipelines.schedules import actions_of
from trimtab.plan.pipelines.simulation import StageTimes, simulate

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
    timeline = simulate(actions, times=StageTimes.even(num_stages))
    placed = sorted(
        (
            (bar.start_s, rank, place)
            for rank, bars in enumerate(timeline.bars)
            for place, bar in enumerate(bars)
        )
    )
    rank_of = rank_of_each_stage(actions)
    number_of: dict[tuple[int, int], int] = {}
    made_by: dict[Result, int] = {}
    durations, before, inputs = [], [], []
    for number, (_, rank, place) in enumerate(placed):
        action = actions[rank][place]
        number_of[rank, place] = number
        durations.append(action.stage + _KINDS.index(action.kind) * num_stages)
        before.append(number_of[rank, place - 1] if place else _NOBODY)
        wires: list[int] = []
        for result in inputs_of(action, num_stages):
            is_here = result.stage == action.stage or rank_of[result.stage] == rank
            wires += (made_by[result], _NOBODY if is_here else min(action.stage, result.stage))
        wires += (_NOBODY,) * (4 - len(wires))
        inputs.append((wires[0], wires[1], wires[2], wires[3]))
        made = output_of(action)
        if made is not None:
            made_by[made] = number
    return WiredPipeline(num_stages, tuple(durations), tuple(before), tuple(inputs))


_KINDS = (ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT, ActionKind.BACKWARD)


def _durations(times: StageTimes) -> list[float]:
    whole = [
        inputs + weights
        for inputs, weights in zip(times.backward_input_s, times.backward_weight_s, strict=True)
    ]
    return [*times.forward_s, *times.backward_input_s, *times.backward_weight_s, *whole]
