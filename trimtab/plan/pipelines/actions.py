"""What a rank of a pipeline does: passes of a stage on a microbatch, in order."""

from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum


class ActionKind(StrEnum):
    """One pass; the letters are those of ``torch.distributed.pipelining``."""

    FORWARD = "F"
    BACKWARD = "B"
    """Gradients of the input and of the weights together."""
    BACKWARD_INPUT = "I"
    """The gradient of the input only: what the stage before waits for."""
    BACKWARD_WEIGHT = "W"
    """The gradients of the weights, which nobody waits for; comes after ``BACKWARD_INPUT``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """A pass of one stage on one microbatch, both counted from 0."""

    kind: ActionKind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        """``2F0`` for the forward pass of stage 2 on microbatch 0, as torch writes it."""
        return f"{self.stage}{self.kind}{self.microbatch}"


RankActions = tuple[Action, ...]
"""The actions of one rank, in the order in which it runs them."""

PipelineActions = tuple[RankActions, ...]
"""The actions of every rank of a pipeline; a stage belongs to exactly one rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineShape:
    """The three numbers that a stage schedule works from.

    Args:
        ranks: Ranks of the pipeline axis.
        stages_per_rank: Stages that each rank holds; more than one makes the bubble smaller.
        microbatches: Microbatches of one step (of one share, where the batch is cut into shares).
    """

    ranks: int
    stages_per_rank: int
    microbatches: int

    @property
    def num_stages(self) -> int:
        """Stages of the whole pipeline."""
        return self.ranks * self.stages_per_rank


class RankOrder:
    """The actions of one rank while they are put in order; the microbatches of a stage count up by themselves."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._forwards: Counter[int] = Counter()
        self._backwards: Counter[int] = Counter()
        self._weights_owed: deque[Action] = deque()

    def forward(self, stage: int) -> None:
        """The forward pass of the stage's next microbatch."""
        self._append(ActionKind.FORWARD, stage, self._forwards)

    def backward(self, stage: int) -> None:
        """The whole backward pass of the stage's next microbatch."""
        self._append(ActionKind.BACKWARD, stage, self._backwards)

    def backward_input(self, stage: int) -> None:
        """The input half of the stage's next backward pass; the weight half is owed."""
        self._append(ActionKind.BACKWARD_INPUT, stage, self._backwards)
        self._weights_owed.append(self._actions[-1])

    def backward_weight(self) -> None:
        """The weight half that is owed longest; nothing if none is."""
        if self._weights_owed:
            self._pay(self._weights_owed[0])

    def backward_weights_of(self, stage: int, *, at_most: int | None = None) -> None:
        """The weight halves that the stage owes, longest owed first: all of them, or ``at_most`` so many."""
        owed = [action for action in self._weights_owed if action.stage == stage]
        for action in owed[:at_most]:
            self._pay(action)

    def finished(self) -> RankActions:
        """The actions in order, with every weight half that was still owed."""
        while self._weights_owed:
            self._pay(self._weights_owed[0])
        return tuple(self._actions)

    def _append(self, kind: ActionKind, stage: int, issued: Counter[int]) -> None:
        self._actions.append(Action(kind=kind, stage=stage, microbatch=issued[stage]))
        issued[stage] += 1

    def _pay(self, owed: Action) -> None:
        self._weights_owed.remove(owed)
        self._actions.append(
            Action(kind=ActionKind.BACKWARD_WEIGHT, stage=owed.stage, microbatch=owed.microbatch)
        )
