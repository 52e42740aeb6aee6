"""A stage schedule put to work: its actions, and which rank holds which stage."""

from trimtab.plan.pipelines.actions import PipelineActions, PipelineShape
from trimtab.plan.pipelines.errors import RefusedShapeError
from trimtab.plan.pipelines.methods import StageSchedule, method_of
from trimtab.plan.pipelines.refusals import refusal_of


def actions_of(
    schedule: StageSchedule, *, ranks: int, stages_per_rank: int, microbatches: int
) -> PipelineActions:
    """The actions of every rank in order: those that torch 2.13's schedule of this name runs.

    >>> first, second = actions_of(StageSchedule.ONE_F_ONE_B, ranks=2, stages_per_rank=1, microbatches=2)
    >>> print(*first)
    0F0 0F1 0B0 0B1
    >>> print(*second)
    1F0 1B0 1F1 1B1

    Raises: RefusedShapeError if the schedule cannot run with these numbers; ``refusal_of`` tells beforehand.
    """
    refusal = refusal_of(schedule, ranks=ranks, stages_per_rank=stages_per_rank, microbatches=microbatches)
    if refusal is not None:
        raise RefusedShapeError(str(refusal))
    shape = PipelineShape(ranks=ranks, stages_per_rank=stages_per_rank, microbatches=microbatches)
    rank_actions = method_of(schedule).rank_actions
    return tuple(rank_actions(rank, shape) for rank in range(ranks))


def stages_per_rank_of(schedule: StageSchedule) -> int | None:
    """The stages per rank that a schedule demands; None if the user chooses."""
    return method_of(schedule).stages_per_rank


def ranks_of_stages(schedule: StageSchedule, *, ranks: int, stages_per_rank: int) -> tuple[int, ...]:
    """For each stage the rank that holds it.

    A loop begins again at the first rank: stage s is on rank s mod ranks. A V turns back at the last rank:
    rank r holds the stages r and 2 ranks - 1 - r.

    >>> ranks_of_stages(StageSchedule.LOOPED_BFS, ranks=3, stages_per_rank=2)
    (0, 1, 2, 0, 1, 2)
    >>> ranks_of_stages(StageSchedule.ZBV, ranks=3, stages_per_rank=2)
    (0, 1, 2, 2, 1, 0)
    """
    rounds = (divmod(stage, ranks) for stage in range(ranks * stages_per_rank))
    is_v = method_of(schedule).is_v
    return tuple(ranks - 1 - place if is_v and turn % 2 else place for turn, place in rounds)
