"""Whether a stage schedule can run with given numbers; if not, why, and with which it could.

The demands are those of torch 2.13's schedules, found out before anything starts: there a wrong number of
microbatches fails on one rank with a shape, and on the others with a closed connection.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from trimtab.plan.pipelines.actions import PipelineShape
from trimtab.plan.pipelines.interleaved import num_rounds
from trimtab.plan.pipelines.methods import Method, StageSchedule, method_of


class Quantity(StrEnum):
    """A number of a pipeline that can be wrong."""

    RANKS = "ranks"
    STAGES_PER_RANK = "stages per rank"
    MICROBATCHES = "microbatches"


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why a stage schedule cannot run with given numbers.

    Args:
        schedule: The stage schedule.
        quantity: The number to change.
        found: What it is.
        demand: What the schedule demands, a part of a sentence that follows its name.
        nearest: The valid values next to ``found``, ascending, while the other numbers stay.
    """

    schedule: StageSchedule
    quantity: Quantity
    found: int
    demand: str
    nearest: tuple[int, ...]

    def __str__(self) -> str:
        """One sentence with the numbers, for people."""
        nearest = " or ".join(map(str, self.nearest))
        return f"{self.schedule} {self.demand}; found {self.found} {self.quantity}, nearest valid: {nearest}"


def refusal_of(
    schedule: StageSchedule, *, ranks: int, stages_per_rank: int, microbatches: int
) -> Refusal | None:
    """The first demand of a schedule that the numbers do not meet; None if it can run with them."""
    shape = PipelineShape(ranks=ranks, stages_per_rank=stages_per_rank, microbatches=microbatches)
    method = method_of(schedule)
    return (
        _refuse_ranks(method, shape)
        or _refuse_stages_per_rank(method, shape)
        or _refuse_microbatches(method, shape)
    )


def _refuse_ranks(method: Method, shape: PipelineShape) -> Refusal | None:
    if shape.ranks >= 1:
        return None
    return Refusal(
        schedule=method.schedule,
        quantity=Quantity.RANKS,
        found=shape.ranks,
        demand="needs a rank",
        nearest=(1,),
    )


def _refuse_stages_per_rank(method: Method, shape: PipelineShape) -> Refusal | None:
    demanded = method.stages_per_rank
    if shape.stages_per_rank == demanded or (demanded is None and shape.stages_per_rank >= 1):
        return None
    needed = demanded or 1
    return Refusal(
        schedule=method.schedule,
        quantity=Quantity.STAGES_PER_RANK,
        found=shape.stages_per_rank,
        demand=f"needs {needed} stage{'s' if needed > 1 else ''} on each rank{'' if demanded else ' or more'}",
        nearest=(needed,),
    )


def _refuse_microbatches(method: Method, shape: PipelineShape) -> Refusal | None:
    if _runs(method, shape):
        return None
    return Refusal(
        schedule=method.schedule,
        quantity=Quantity.MICROBATCHES,
        found=shape.microbatches,
        demand=method.microbatches.text.format(
            stages=shape.num_stages, ranks=shape.ranks, rounds=num_rounds(shape)
        ),
        nearest=_nearest_microbatches(method, shape),
    )


def _runs(method: Method, shape: PipelineShape) -> bool:
    return shape.microbatches >= 1 and method.microbatches.is_met(shape)


def _nearest_microbatches(method: Method, shape: PipelineShape) -> tuple[int, ...]:
    """The next valid numbers below, if there is one, and above: a multiple of the stages is always valid."""

    def first_valid(counts: Iterable[int]) -> Iterable[int]:
        valid = (count for count in counts if _runs(method, replace(shape, microbatches=count)))
        return islice(valid, 1)

    found = shape.microbatches
    below = range(found - 1, 0, -1)
    above = range(max(found, 0) + 1, max(found, 0) + shape.num_stages + 1)
    return (*first_valid(below), *first_valid(above))
