"""What actions hand to each other: activations forwards, gradients back."""

from collections.abc import Mapping
from typing import NamedTuple

from trimtab.plan.pipelines.actions import Action, ActionKind, PipelineActions
from trimtab.plan.pipelines.errors import PipelineError


class Result(NamedTuple):
    """What a stage has computed on a microbatch: its output, or the gradient of its input."""

    is_gradient: bool
    stage: int
    microbatch: int


def inputs_of(action: Action, num_stages: int) -> tuple[Result, ...]:
    """The results that an action needs, of its own stage and of a neighbour."""
    stage, microbatch = action.stage, action.microbatch
    if action.kind is ActionKind.FORWARD:
        return (Result(False, stage - 1, microbatch),) if stage else ()
    if action.kind is ActionKind.BACKWARD_WEIGHT:
        return (Result(True, stage, microbatch),)
    own = Result(False, stage, microbatch)
    return (own, Result(True, stage + 1, microbatch)) if stage + 1 < num_stages else (own,)


def output_of(action: Action) -> Result | None:
    """The result of an action that others may need; None for the weight half of a backward pass."""
    if action.kind is ActionKind.BACKWARD_WEIGHT:
        return None
    return Result(action.kind is not ActionKind.FORWARD, action.stage, action.microbatch)


def rank_of_each_stage(actions: PipelineActions) -> Mapping[int, int]:
    """The rank that runs each stage.

    Raises: PipelineError if two ranks run actions of one stage.
    """
    rank_of: dict[int, int] = {}
    for rank, order in enumerate(actions):
        for stage in {action.stage for action in order}:
            if rank_of.setdefault(stage, rank) != rank:
                raise PipelineError(
                    f"stage {stage} has actions on ranks {rank_of[stage]} and {rank}; a stage belongs to one rank"
                )
    return rank_of
