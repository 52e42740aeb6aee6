"""The stage schedules that there are: one row for each, with what it demands."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from trimtab.plan.pipelines.actions import PipelineShape, RankActions
from trimtab.plan.pipelines.dualpipev import dualpipev_actions
from trimtab.plan.pipelines.gpipe import gpipe_actions
from trimtab.plan.pipelines.interleaved import (
    interleaved_1f1b_actions,
    interleaved_zero_bubble_actions,
    num_rounds,
)
from trimtab.plan.pipelines.looped_bfs import looped_bfs_actions
from trimtab.plan.pipelines.one_f_one_b import one_f_one_b_actions
from trimtab.plan.pipelines.zbv import zbv_actions


class StageSchedule(StrEnum):
    """The order in which stages run their microbatches, by the name that formulas use."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED_1F1B = "interleaved_1f1b"
    LOOPED_BFS = "looped_bfs"
    INTERLEAVED_ZERO_BUBBLE = "interleaved_zero_bubble"
    ZBV = "zbv"
    DUALPIPEV = "dualpipev"


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What a schedule demands of the number of microbatches.

    Args:
        text: A part of a sentence that follows the schedule's name; ``{stages}``, ``{ranks}`` and ``{rounds}``
            stand for the numbers of a shape.
        is_met: Whether a shape of at least one microbatch meets it.
    """

    text: str
    is_met: Callable[[PipelineShape], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """How one stage schedule works.

    Args:
        schedule: Its name.
        rank_actions: The actions of a rank in order, for a shape that meets every demand.
        stages_per_rank: The stages per rank that it demands; None if any number will do.
        is_v: Whether the stages turn back at the last rank; else they begin again at the first.
        microbatches: What it demands of the number of microbatches.
    """

    schedule: StageSchedule
    rank_actions: Callable[[int, PipelineShape], RankActions]
    stages_per_rank: int | None
    is_v: bool = False
    microbatches: Demand


def _has_one_per_stage(shape: PipelineShape) -> bool:
    return shape.microbatches >= shape.num_stages


def _has_equal_rounds(shape: PipelineShape) -> bool:
    return shape.microbatches % num_rounds(shape) == 0


def _has_any(shape: PipelineShape) -> bool:
    return shape.microbatches >= 1


_ANY = Demand(text="needs a microbatch", is_met=_has_any)
_ONE_PER_STAGE = Demand(
    text="needs a microbatch for each stage, here {stages} on {ranks} ranks", is_met=_has_one_per_stage
)
_EQUAL_ROUNDS = Demand(
    text="needs microbatches that divide into equal rounds, here {rounds} for {ranks} ranks",
    is_met=_has_equal_rounds,
)

METHODS = (
    Method(
        schedule=StageSchedule.GPIPE,
        rank_actions=gpipe_actions,
        stages_per_rank=1,
        microbatches=_ANY,
    ),
    Method(
        schedule=StageSchedule.ONE_F_ONE_B,
        rank_actions=one_f_one_b_actions,
        stages_per_rank=1,
        microbatches=_ONE_PER_STAGE,
    ),
    Method(
        schedule=StageSchedule.INTERLEAVED_1F1B,
        rank_actions=interleaved_1f1b_actions,
        stages_per_rank=None,
        microbatches=_EQUAL_ROUNDS,
    ),
    Method(
        schedule=StageSchedule.LOOPED_BFS,
        rank_actions=looped_bfs_actions,
        stages_per_rank=None,
        microbatches=_ANY,
    ),
    Method(
        schedule=StageSchedule.INTERLEAVED_ZERO_BUBBLE,
        rank_actions=interleaved_zero_bubble_actions,
        stages_per_rank=None,
        microbatches=_EQUAL_ROUNDS,
    ),
    Method(
        schedule=StageSchedule.ZBV,
        rank_actions=zbv_actions,
        stages_per_rank=2,
        is_v=True,
        microbatches=_ANY,
    ),
    Method(
        schedule=StageSchedule.DUALPIPEV,
        rank_actions=dualpipev_actions,
        stages_per_rank=2,
        is_v=True,
        microbatches=_ONE_PER_STAGE,
    ),
)
"""The registry: one row for each stage schedule."""

_BY_SCHEDULE = {method.schedule: method for method in METHODS}


def method_of(schedule: StageSchedule) -> Method:
    """The row of a stage schedule."""
    return _BY_SCHEDULE[schedule]
