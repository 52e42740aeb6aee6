"""Times against closed forms that the papers publish, and against small cases by hand."""

from itertools import pairwise

import pytest

from trimtab.plan.pipelines import (
    Action,
    ActionKind,
    DeadlockError,
    PipelineError,
    StageSchedule,
    StageTimes,
    actions_of,
    simulate,
    stages_per_rank_of,
)

F, B, I, W = ActionKind  # noqa: E741 - the letters of the field


def timeline_of(schedule, *, ranks, microbatches, stages_per_rank=1, **times):
    actions = actions_of(schedule, ranks=ranks, stages_per_rank=stages_per_rank, microbatches=microbatches)
    return simulate(actions, times=StageTimes.even(ranks * stages_per_rank, **times))


def order(text):
    """Actions written as torch writes them: ``0F0 0B0``."""
    return tuple(
        Action(kind=ActionKind(kind), stage=int(stage), microbatch=int(microbatch))
        for stage, kind, microbatch in text.split()
    )


@pytest.mark.parametrize("schedule", [StageSchedule.GPIPE, StageSchedule.ONE_F_ONE_B])
@pytest.mark.parametrize("ranks", [1, 2, 4, 16])
@pytest.mark.parametrize("microbatches", [16, 17, 64])
def test_the_bubble_is_that_of_the_formula(schedule, ranks, microbatches):
    """(p - 1) / (m + p - 1), whatever the times of a pass: GPipe section 2.3, Megatron section 2.2.1."""
    for backward_s in (1.0, 2.5):
        timeline = timeline_of(
            schedule, ranks=ranks, microbatches=microbatches, forward_s=0.7, backward_weight_s=backward_s
        )
        assert timeline.bubble_share == pytest.approx((ranks - 1) / (microbatches + ranks - 1))
        assert timeline.bubble_shares == pytest.approx([timeline.bubble_share] * ranks)


@pytest.mark.parametrize("schedule", [StageSchedule.INTERLEAVED_1F1B, StageSchedule.LOOPED_BFS])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("stages_per_rank", [1, 2, 5])
def test_interleaving_divides_the_bubble_by_the_stages_per_rank(schedule, ranks, stages_per_rank):
    """(p - 1) / (v m + p - 1): Narayanan et al. 2021 section 2.2.2, Lamy-Poirier 2022 section 4."""
    microbatches = 3 * ranks
    timeline = timeline_of(schedule, ranks=ranks, microbatches=microbatches, stages_per_rank=stages_per_rank)
    waiting, working = ranks - 1, stages_per_rank * microbatches
    assert timeline.bubble_share == pytest.approx(waiting / (working + waiting))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("stages_per_rank", [1, 2, 3])
def test_zero_bubble_waits_for_less_than_1f1b(ranks, stages_per_rank):
    """The weight halves fill a part of the wait: (p - 1)(F + I - W) of it is left, Qi et al. table 2."""
    shape = {"ranks": ranks, "microbatches": 3 * ranks, "stages_per_rank": stages_per_rank}
    times = {"forward_s": 1.0, "backward_input_s": 1.1, "backward_weight_s": 0.9}
    timeline = timeline_of(StageSchedule.INTERLEAVED_ZERO_BUBBLE, **shape, **times)
    waiting_s = timeline.makespan_s - timeline.busy_s[0]
    assert waiting_s == pytest.approx((ranks - 1) * (1.0 + 1.1 - 0.9))
    whole = timeline_of(StageSchedule.INTERLEAVED_1F1B, **shape, **times)
    assert timeline.bubble_share < whole.bubble_share


def test_fewer_microbatches_than_stages_waste_a_machine_as_published():
    """BigScience, V100, 16 stages: 10.7 TFLOP/s with 4 microbatches, 52.8 with 256.

    Source: bigscience/experiments/gpt2.md of the BigScience repository. The formula says 79 % of bubble with 4
    microbatches; the ratio of the two throughputs is that of the busy shares within a tenth.
    """
    few = timeline_of(StageSchedule.GPIPE, ranks=16, microbatches=4)
    many = timeline_of(StageSchedule.GPIPE, ranks=16, microbatches=256)
    assert few.bubble_share == pytest.approx(0.79, abs=0.005)
    predicted = (1 - few.bubble_share) / (1 - many.bubble_share)
    assert predicted == pytest.approx(10.7 / 52.8, rel=0.1)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_a_third_is_lost_until_microbatches_are_two_and_a_third_times_the_ranks(ranks):
    """More than 30 % of bubble if and only if m < 7/3 (p - 1)."""
    for microbatches in range(1, 4 * ranks):
        share = timeline_of(StageSchedule.GPIPE, ranks=ranks, microbatches=microbatches).bubble_share
        assert (share > 0.3 + 1e-9) == (3 * microbatches < 7 * (ranks - 1))


def test_a_hop_delays_the_first_microbatch_and_not_the_others():
    """Two ranks, GPipe: only the way there and the way back are waited for."""
    without = timeline_of(StageSchedule.GPIPE, ranks=2, microbatches=4)
    with_hops = timeline_of(StageSchedule.GPIPE, ranks=2, microbatches=4, hop_s=0.25)
    assert with_hops.makespan_s == pytest.approx(without.makespan_s + 2 * 0.25)


def test_stages_of_one_rank_hand_over_without_a_hop():
    """At the turn of a V, and between the stages of a pipeline of one rank, nothing is sent."""
    for schedule in (StageSchedule.ZBV, StageSchedule.LOOPED_BFS):
        near = timeline_of(schedule, ranks=1, microbatches=3, stages_per_rank=2)
        far = timeline_of(schedule, ranks=1, microbatches=3, stages_per_rank=2, hop_s=100.0)
        assert far == near


def test_each_border_has_its_own_hop():
    """A pipeline over two nodes crosses the slow link once; its price stands at that border only."""
    actions = actions_of(StageSchedule.GPIPE, ranks=3, stages_per_rank=1, microbatches=1)
    ones = (1.0, 1.0, 1.0)
    times = StageTimes(forward_s=ones, backward_input_s=ones, backward_weight_s=ones, hop_s=(0.0, 5.0))
    bars = simulate(actions, times=times).bars
    assert [bar.start_s for bar in bars[2]] == [7.0, 8.0]
    assert [bar.start_s for bar in bars[1]] == [1.0, 15.0]
    assert [bar.start_s for bar in bars[0]] == [0.0, 17.0]


def test_the_slowest_stage_sets_the_pace():
    """1F1B in its steady state takes one pass of the slowest stage for each microbatch."""
    actions = actions_of(StageSchedule.ONE_F_ONE_B, ranks=3, stages_per_rank=1, microbatches=40)
    times = StageTimes(
        forward_s=(1.0, 2.0, 1.0),
        backward_input_s=(1.0, 2.0, 1.0),
        backward_weight_s=(1.0, 2.0, 1.0),
        hop_s=(0.0, 0.0),
    )
    timeline = simulate(actions, times=times)
    assert timeline.busy_s == pytest.approx([120.0, 240.0, 120.0])
    before, gap, after = 1.0, 1.0, 2.0  # the gap: its first backward pass waits for the last stage
    assert timeline.makespan_s == pytest.approx(before + 240.0 + gap + after)


def test_bars_follow_each_other_and_their_inputs():
    """A bar that starts before its input exists, or over another bar, is a time that no machine reaches."""
    for schedule in StageSchedule:
        timeline = timeline_of(
            schedule, ranks=4, microbatches=8, stages_per_rank=stages_per_rank_of(schedule) or 2, hop_s=0.3
        )
        bars = [bar for rank in timeline.bars for bar in rank]
        ends = {(bar.action.kind, bar.action.stage, bar.action.microbatch): bar.end_s for bar in bars}
        for rank_bars in timeline.bars:
            assert all(a.end_s <= b.start_s for a, b in pairwise(rank_bars))
        for bar in bars:
            action = bar.action
            if action.kind is F and action.stage:
                assert bar.start_s >= ends[F, action.stage - 1, action.microbatch]
            if action.kind in (B, I):
                assert bar.start_s >= ends[F, action.stage, action.microbatch]
            if action.kind is W:
                assert bar.start_s >= ends[I, action.stage, action.microbatch]


def test_an_action_that_waits_for_one_never_issued_is_named():
    """A schedule written by hand that leaves out a pass would hang every rank for half an hour."""
    actions = (order("0F0 0B0"), order("1F0 1F1 1B0"))
    with pytest.raises(DeadlockError) as caught:
        simulate(actions, times=StageTimes.even(2))
    assert str(caught.value) == (
        "rank 1 waits at its action 1, 1F1, for the output of stage 0 on microbatch 1, which no rank computes"
    )


def test_ranks_that_wait_for_each_other_are_named():
    """Each message is posted, and each after the one that the other side waits for."""
    actions = (order("0F0 0B0 0F1 0B1"), order("1F1 1F0 1B0 1B1"))
    with pytest.raises(DeadlockError) as caught:
        simulate(actions, times=StageTimes.even(2))
    assert str(caught.value) == (
        "ranks wait for each other: rank 0 at 0B0 for the input gradient of stage 1 on microbatch 0, "
        "rank 1 at 1F1 for the output of stage 0 on microbatch 1"
    )


def test_a_rank_that_waits_for_itself_is_named():
    """A backward pass before its forward pass: the rank is its own circle."""
    with pytest.raises(DeadlockError) as caught:
        simulate((order("0B0 0F0"),), times=StageTimes.even(1))
    assert "rank 0 at 0B0 for the output of stage 0 on microbatch 0" in str(caught.value)


def test_a_stage_on_two_ranks_is_refused():
    """Its weights would be updated in two places."""
    with pytest.raises(PipelineError, match="stage 0 has actions on ranks 0 and 1"):
        simulate((order("0F0 0B0"), order("0F1 0B1")), times=StageTimes.even(1))


def test_a_large_pipeline_is_simulated():
    """16 ranks and 256 microbatches are one of hundreds of candidates that a search simulates."""
    actions = actions_of(StageSchedule.ONE_F_ONE_B, ranks=16, stages_per_rank=1, microbatches=256)
    times = StageTimes.even(16, hop_s=0.1)
    timeline = simulate(actions, times=times)
    assert sum(len(bars) for bars in timeline.bars) == 16 * 256 * 2
