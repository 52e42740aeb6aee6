"""One step of a pipeline, simulated: every action starts when its rank is free and its inputs have arrived."""

from collections import defaultdict, deque
from dataclasses import dataclass

from trimtab.plan.pipelines.actions import Action, ActionKind, PipelineActions
from trimtab.plan.pipelines.deadlock import deadlock_of
from trimtab.plan.pipelines.results import Result, inputs_of, output_of, rank_of_each_stage
from trimtab.plan.pipelines.timeline import Bar, Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """How long the passes of each stage take on one microbatch, and the way between stages, in seconds.

    Args:
        forward_s: Forward pass, by stage.
        backward_input_s: Gradient of the input, by stage; with recompute, the second forward pass belongs here.
        backward_weight_s: Gradients of the weights, by stage. A whole backward pass takes both.
        hop_s: By border between a stage and the next: an activation forwards, or its gradient back. Stages
            of one rank hand over without a hop, whatever stands here.
    """

    forward_s: tuple[float, ...]
    backward_input_s: tuple[float, ...]
    backward_weight_s: tuple[float, ...]
    hop_s: tuple[float, ...]

    def __post_init__(self) -> None:
        """Every stage has its times, and every border between two."""
        stages = len(self.forward_s)
        assert len(self.backward_input_s) == len(self.backward_weight_s) == stages
        assert len(self.hop_s) == max(0, stages - 1)

    @classmethod
    def even(
        cls,
        num_stages: int,
        *,
        forward_s: float = 1.0,
        backward_input_s: float = 1.0,
        backward_weight_s: float = 1.0,
        hop_s: float = 0.0,
    ) -> "StageTimes":
        """The same times for each of ``num_stages`` stages."""
        return cls(
            forward_s=(forward_s,) * num_stages,
            backward_input_s=(backward_input_s,) * num_stages,
            backward_weight_s=(backward_weight_s,) * num_stages,
            hop_s=(hop_s,) * max(0, num_stages - 1),
        )

    def duration_s(self, action: Action) -> float:
        """Seconds that an action takes its rank."""
        stage = action.stage
        match action.kind:
            case ActionKind.FORWARD:
                return self.forward_s[stage]
            case ActionKind.BACKWARD_INPUT:
                return self.backward_input_s[stage]
            case ActionKind.BACKWARD_WEIGHT:
                return self.backward_weight_s[stage]
            case ActionKind.BACKWARD:
                return self.backward_input_s[stage] + self.backward_weight_s[stage]


def simulate(actions: PipelineActions, *, times: StageTimes) -> Timeline:
    """When each action starts and ends, if every rank runs its actions in order and as early as it can.

    A forward pass waits for that of the stage before; the input half of a backward pass waits for that of the
    stage after and for its own forward pass; a weight half waits for its input half. What a stage sends
    travels beside the computation of both ranks, and messages on one link do not delay each other.
    ``times`` has an entry for every stage that has actions.

    Raises: DeadlockError, which names the action, if one waits for what never comes.
    """
    simulation = _Simulation(actions, times)
    runnable = deque(range(len(actions)))
    while runnable:
        runnable.extend(simulation.advance(runnable.popleft()))
    positions = tuple(len(bars) for bars in simulation.bars)
    if any(position < len(order) for position, order in zip(positions, actions, strict=True)):
        raise deadlock_of(actions, positions, num_stages=len(times.forward_s))
    return Timeline(bars=tuple(tuple(bars) for bars in simulation.bars))


class _Simulation:
    """How far each rank is, which results exist since when, and who waits for which."""

    def __init__(self, actions: PipelineActions, times: StageTimes) -> None:
        self.bars: list[list[Bar]] = [[] for _ in actions]
        self._actions = actions
        self._times = times
        self._num_stages = len(times.forward_s)
        self._rank_of = rank_of_each_stage(actions)
        assert self._rank_of.keys() <= set(range(self._num_stages)), "times for every stage"
        self._ready_s: dict[Result, float] = {}
        self._waiting: dict[Result, list[int]] = defaultdict(list)

    def advance(self, rank: int) -> list[int]:
        """Run a rank until it must wait or has ended; returns the ranks that can go on because of it."""
        woken: list[int] = []
        bars = self.bars[rank]
        order = self._actions[rank]
        free_s = bars[-1].end_s if bars else 0.0
        while len(bars) < len(order):
            action = order[len(bars)]
            start_s = self._start_s(rank, action, free_s)
            if start_s is None:
                break
            free_s = start_s + self._times.duration_s(action)
            bars.append(Bar(action=action, start_s=start_s, end_s=free_s))
            result = output_of(action)
            if result is not None:
                self._ready_s[result] = free_s
                woken += self._waiting.pop(result, [])
        return woken

    def _start_s(self, rank: int, action: Action, free_s: float) -> float | None:
        """When a rank that is free can start an action; None, and it is noted as waiting, if an input is missing."""
        start_s = free_s
        for result in inputs_of(action, self._num_stages):
            ready_s = self._ready_s.get(result)
            if ready_s is None:
                self._waiting[result].append(rank)
                return None
            start_s = max(start_s, ready_s + self._hop_s(rank, action.stage, result))
        return start_s

    def _hop_s(self, rank: int, stage: int, result: Result) -> float:
        if result.stage == stage or self._rank_of[result.stage] == rank:
            return 0.0
        return self._times.hop_s[min(stage, result.stage)]
