"""Orders that can be read in the papers, and what holds for every order.

That the orders are torch's is compared in tests/runtime/test_pipeline_schedules.py.
"""

from collections import Counter

import pytest

from trimtab.plan.pipelines import (
    ActionKind,
    RefusedShapeError,
    StageSchedule,
    StageTimes,
    actions_of,
    ranks_of_stages,
    refusal_of,
    simulate,
)

SHAPES = [
    {"ranks": ranks, "stages_per_rank": stages_per_rank, "microbatches": microbatches}
    for ranks in (1, 2, 3, 4, 8)
    for stages_per_rank in (1, 2, 3)
    for microbatches in (1, 2, 3, 5, 8, 16, 17)
]


def runnable(schedule):
    return [shape for shape in SHAPES if refusal_of(schedule, **shape) is None]


def orders(schedule, **shape):
    return [" ".join(map(str, order)) for order in actions_of(schedule, **shape)]


def test_gpipe_fills_and_drains():
    """Figure 2 of the paper: all forward passes, then all backward passes."""
    assert orders(StageSchedule.GPIPE, ranks=2, stages_per_rank=1, microbatches=2) == [
        "0F0 0F1 0B0 0B1",
        "1F0 1F1 1B0 1B1",
    ]


def test_1f1b_alternates_once_it_can():
    """The first rank runs as many forward passes ahead as there are stages, the last one none."""
    assert orders(StageSchedule.ONE_F_ONE_B, ranks=3, stages_per_rank=1, microbatches=4) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]


def test_interleaved_1f1b_sends_a_round_through_each_stage_of_a_rank():
    """Figure 4 of Narayanan et al. 2021, two ranks of two stages."""
    first, _ = orders(StageSchedule.INTERLEAVED_1F1B, ranks=2, stages_per_rank=2, microbatches=4)
    assert first == "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3"


def test_looped_bfs_ends_a_stage_before_it_begins_the_next():
    """Weights that are gathered before use are gathered once a step and direction."""
    first, _ = orders(StageSchedule.LOOPED_BFS, ranks=2, stages_per_rank=2, microbatches=2)
    assert first == "0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0"


def test_zero_bubble_owes_as_many_weight_halves_as_its_rank():
    """The later a rank starts, the more it has to fill its end with."""
    first, second = orders(StageSchedule.INTERLEAVED_ZERO_BUBBLE, ranks=2, stages_per_rank=1, microbatches=3)
    assert first == "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2"
    assert second == "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"


@pytest.mark.parametrize("schedule", [StageSchedule.ZBV, StageSchedule.DUALPIPEV])
def test_a_v_turns_at_the_last_rank(schedule):
    """The first rank holds the last stage too: what it sends down comes back up to it."""
    assert ranks_of_stages(schedule, ranks=4, stages_per_rank=2) == (0, 1, 2, 3, 3, 2, 1, 0)
    for rank, order in enumerate(actions_of(schedule, ranks=4, stages_per_rank=2, microbatches=8)):
        assert {action.stage for action in order} == {rank, 7 - rank}


@pytest.mark.parametrize("schedule", StageSchedule)
def test_every_stage_runs_every_microbatch_once(schedule):
    """A microbatch left out trains on less data than paid for; one run twice counts its gradient twice."""
    shapes = runnable(schedule)
    assert shapes
    for shape in shapes:
        num_stages = shape["ranks"] * shape["stages_per_rank"]
        each = {
            (stage, microbatch) for stage in range(num_stages) for microbatch in range(shape["microbatches"])
        }
        ran = Counter(
            (action.kind, action.stage, action.microbatch)
            for order in actions_of(schedule, **shape)
            for action in order
        )
        assert set(ran.values()) == {1}
        by_kind = {kind: {key[1:] for key in ran if key[0] is kind} for kind in ActionKind}
        assert by_kind[ActionKind.FORWARD] == each
        assert by_kind[ActionKind.BACKWARD_INPUT] == by_kind[ActionKind.BACKWARD_WEIGHT]
        assert by_kind[ActionKind.BACKWARD] | by_kind[ActionKind.BACKWARD_INPUT] == each
        assert not by_kind[ActionKind.BACKWARD] & by_kind[ActionKind.BACKWARD_INPUT]


@pytest.mark.parametrize("schedule", StageSchedule)
def test_stages_run_where_they_are_placed(schedule):
    """A rank asked to run a stage that it does not hold has no weights for it."""
    for shape in runnable(schedule):
        placement = ranks_of_stages(schedule, ranks=shape["ranks"], stages_per_rank=shape["stages_per_rank"])
        for rank, order in enumerate(actions_of(schedule, **shape)):
            assert {placement[action.stage] for action in order} == {rank}


@pytest.mark.parametrize("schedule", StageSchedule)
def test_no_accepted_shape_hangs(schedule):
    """S-NUM-13: few microbatches, or odd numbers of them, end or are refused; nothing hangs."""
    for shape in runnable(schedule):
        times = StageTimes.even(shape["ranks"] * shape["stages_per_rank"], hop_s=0.5)
        simulate(actions_of(schedule, **shape), times=times)


def test_numbers_that_a_schedule_cannot_run_are_refused_with_what_it_could():
    """The sentence reaches the user, who must learn what to change."""
    with pytest.raises(RefusedShapeError) as caught:
        actions_of(StageSchedule.ONE_F_ONE_B, ranks=4, stages_per_rank=1, microbatches=3)
    assert str(caught.value) == (
        "1f1b needs a microbatch for each stage, here 4 on 4 ranks; found 3 microbatches, nearest valid: 4"
    )
