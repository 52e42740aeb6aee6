import pytest

from trimtab.plan.pipelines import StageSchedule, actions_of, in_flight, peak_bytes, transfers


def actions(schedule, *, ranks, microbatches, stages_per_rank=1):
    return actions_of(schedule, ranks=ranks, stages_per_rank=stages_per_rank, microbatches=microbatches)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("microbatches", [8, 9, 32])
def test_gpipe_holds_every_microbatch_and_1f1b_one_for_each_stage_ahead(ranks, microbatches):
    """The reason to choose 1F1B: min(m, p - r) instead of m on rank r."""
    shape = {"ranks": ranks, "microbatches": microbatches}
    assert in_flight(actions(StageSchedule.GPIPE, **shape)).ranks == (microbatches,) * ranks
    assert in_flight(actions(StageSchedule.ONE_F_ONE_B, **shape)).ranks == tuple(
        min(microbatches, ranks - rank) for rank in range(ranks)
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("stages_per_rank", [2, 3, 5])
def test_interleaving_holds_more_by_the_published_factor(ranks, stages_per_rank):
    """p (1 + (p - 1) / (p v)) microbatches of a whole rank on the first: Korthikanti et al. 2022, section 4.2.3."""
    held = in_flight(
        actions(
            StageSchedule.INTERLEAVED_1F1B,
            ranks=ranks,
            microbatches=4 * ranks,
            stages_per_rank=stages_per_rank,
        )
    )
    factor = 1 + (ranks - 1) / (ranks * stages_per_rank)
    assert held.ranks[0] / stages_per_rank == pytest.approx(ranks * factor)


def test_breadth_first_holds_everything():
    """All microbatches of all stages: what its short bubble is paid with."""
    held = in_flight(actions(StageSchedule.LOOPED_BFS, ranks=2, microbatches=6, stages_per_rank=3))
    assert held.ranks == (18, 18)
    assert held.stages == (6,) * 6


def test_zbv_holds_as_much_on_every_rank_and_no_more_than_1f1b_on_its_first():
    """2 p half-size stages in flight, as the paper promises."""
    for ranks in (2, 4, 8):
        held = in_flight(actions(StageSchedule.ZBV, ranks=ranks, microbatches=4 * ranks, stages_per_rank=2))
        assert held.ranks == (2 * ranks,) * ranks


def test_a_weight_half_holds_its_microbatch():
    """With the weight half put off, activations stay; counting until the input half would promise too much memory."""
    held = in_flight(actions(StageSchedule.INTERLEAVED_ZERO_BUBBLE, ranks=4, microbatches=12))
    assert held.ranks == (4, 4, 4, 4)


def test_stages_that_do_not_peak_together_are_not_added():
    """A rank's peak is that of one moment; the sum of its stages' peaks would refuse a plan that fits."""
    of = actions(StageSchedule.INTERLEAVED_1F1B, ranks=2, microbatches=8, stages_per_rank=2)
    held = in_flight(of)
    for rank in range(2):
        assert held.ranks[rank] <= held.stages[rank] + held.stages[rank + 2]
    assert peak_bytes(of, stage_bytes=(100, 100, 1, 1)) == tuple(
        max(100 * first + second for first, second in _held_over_time(of[rank], (rank, rank + 2)))
        for rank in range(2)
    )


def _held_over_time(order, stages):
    counts = dict.fromkeys(stages, 0)
    for action in order:
        counts[action.stage] += {"F": 1, "B": -1}[action.kind]
        yield tuple(counts.values())


def test_neighbours_send_each_microbatch_once_there_and_once_back():
    """The bytes of a step are these counts times the size of an activation."""
    sent = transfers(actions(StageSchedule.ONE_F_ONE_B, ranks=3, microbatches=5))
    assert sent.activations == {(0, 1): 5, (1, 2): 5}
    assert sent.gradients == {(2, 1): 5, (1, 0): 5}


def test_a_loop_sends_from_the_last_rank_to_the_first():
    """Once for every stage of a rank but the last: traffic that a line of ranks does not have."""
    sent = transfers(actions(StageSchedule.INTERLEAVED_1F1B, ranks=3, microbatches=6, stages_per_rank=3))
    assert sent.activations == {(0, 1): 18, (1, 2): 18, (2, 0): 12}
    assert sent.gradients == {(1, 0): 18, (2, 1): 18, (0, 2): 12}


@pytest.mark.parametrize("schedule", [StageSchedule.ZBV, StageSchedule.DUALPIPEV])
def test_a_v_keeps_its_turn_local(schedule):
    """Both halves travel between neighbours only, and nothing is sent at the turn."""
    sent = transfers(actions(schedule, ranks=3, microbatches=6, stages_per_rank=2))
    there_and_back = {(0, 1): 6, (1, 2): 6, (2, 1): 6, (1, 0): 6}
    assert sent.activations == there_and_back
    assert sent.gradients == there_and_back
