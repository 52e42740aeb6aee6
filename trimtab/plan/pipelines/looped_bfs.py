"""Looped breadth-first: a rank runs all microbatches through one of its stages before it turns to the next.

Every weight is used in one stretch, which suits weights that are gathered before use; every activation is held.
Source: Lamy-Poirier 2022, https://arxiv.org/abs/2211.05953.
"""

from trimtab.plan.pipelines.actions import Action, ActionKind, PipelineShape, RankActions


def looped_bfs_actions(rank: int, shape: PipelineShape) -> RankActions:
    """The actions of a rank, which holds every ``ranks``-th stage; backward passes run in opposite order."""
    forwards = [
        (stage, microbatch)
        for stage in range(rank, shape.num_stages, shape.ranks)
        for microbatch in range(shape.microbatches)
    ]
    return (
        *(_action(ActionKind.FORWARD, *place) for place in forwards),
        *(_action(ActionKind.BACKWARD, *place) for place in reversed(forwards)),
    )


def _action(kind: ActionKind, stage: int, microbatch: int) -> Action:
    return Action(kind=kind, stage=stage, microbatch=microbatch)
