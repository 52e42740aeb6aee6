import pytest

from trimtab.plan.pipelines import Quantity, StageSchedule, refusal_of
from trimtab.plan.pipelines.methods import METHODS

TABLE = [
    # schedule, ranks, stages per rank, microbatches: the nearest valid numbers, or None
    ("gpipe", 2, 1, 1, None),
    ("gpipe", 4, 1, 3, None),
    ("gpipe", 4, 2, 8, (1,)),
    ("gpipe", 2, 1, 0, (1,)),
    ("1f1b", 2, 1, 1, (2,)),
    ("1f1b", 2, 1, 3, None),
    ("1f1b", 4, 1, 3, (4,)),
    ("1f1b", 4, 1, 4, None),
    ("1f1b", 4, 1, -2, (4,)),
    ("interleaved_1f1b", 2, 2, 3, None),
    ("interleaved_1f1b", 2, 2, 5, (4, 6)),
    ("interleaved_1f1b", 4, 2, 3, None),
    ("interleaved_1f1b", 4, 2, 9, (8, 10)),
    ("interleaved_1f1b", 4, 2, 11, (10, 12)),
    ("interleaved_1f1b", 4, 0, 8, (1,)),
    ("looped_bfs", 4, 3, 1, None),
    ("interleaved_zero_bubble", 4, 1, 7, None),
    ("interleaved_zero_bubble", 4, 2, 13, (12, 15)),
    ("zbv", 4, 2, 1, None),
    ("zbv", 2, 3, 8, (2,)),
    ("dualpipev", 2, 2, 3, (4,)),
    ("dualpipev", 4, 1, 8, (2,)),
    ("dualpipev", 4, 2, 8, None),
    ("dualpipev", 4, 2, 0, (8,)),
    ("zbv", 0, 2, 8, (1,)),
]


@pytest.mark.parametrize(("schedule", "ranks", "stages_per_rank", "microbatches", "nearest"), TABLE)
def test_numbers_run_or_are_refused_with_the_nearest_valid(
    schedule, ranks, stages_per_rank, microbatches, nearest
):
    """S-NUM-13: instead of a shape error on one stage and a closed connection on another."""
    refusal = refusal_of(
        StageSchedule(schedule), ranks=ranks, stages_per_rank=stages_per_rank, microbatches=microbatches
    )
    assert (refusal and refusal.nearest) == nearest


@pytest.mark.parametrize("schedule", StageSchedule)
def test_the_nearest_valid_are_valid_and_nothing_lies_between(schedule):
    """Advice that is refused in its turn, or that asks for more change than needed, is worse than none."""
    for ranks in range(1, 7):
        for stages_per_rank in (1, 2, 3):
            shape = {"ranks": ranks, "stages_per_rank": stages_per_rank}
            valid = [
                count for count in range(1, 60) if refusal_of(schedule, **shape, microbatches=count) is None
            ]
            for found in range(1, 30):
                refusal = refusal_of(schedule, **shape, microbatches=found)
                if refusal is None or refusal.quantity is not Quantity.MICROBATCHES:
                    continue
                below = [count for count in valid if count < found][-1:]
                above = [count for count in valid if count > found][:1]
                assert list(refusal.nearest) == [*below, *above]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            ("interleaved_1f1b", 4, 2, 11),
            "interleaved_1f1b needs microbatches that divide into equal rounds, here 2 for 4 ranks; "
            "found 11 microbatches, nearest valid: 10 or 12",
        ),
        (("zbv", 4, 3, 8), "zbv needs 2 stages on each rank; found 3 stages per rank, nearest valid: 2"),
        (
            ("looped_bfs", 4, 0, 8),
            "looped_bfs needs 1 stage on each rank or more; found 0 stages per rank, nearest valid: 1",
        ),
        (("gpipe", 0, 1, 8), "gpipe needs a rank; found 0 ranks, nearest valid: 1"),
    ],
)
def test_a_refusal_is_a_sentence(shape, message):
    """It names the schedule, what it needs, what was found and what to write."""
    schedule, ranks, stages_per_rank, microbatches = shape
    refusal = refusal_of(
        StageSchedule(schedule), ranks=ranks, stages_per_rank=stages_per_rank, microbatches=microbatches
    )
    assert str(refusal) == message


def test_every_schedule_has_one_row():
    """A schedule without a row is a KeyError for whoever names it."""
    assert [method.schedule for method in METHODS] == list(StageSchedule)
