import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.plan.pipelines import (
    StageSchedule,
    StageTimes,
    actions_of,
    draw,
    refusal_of,
    simulate,
    stages_per_rank_of,
)


def timeline_of(schedule, *, ranks=4, microbatches=8, stages_per_rank=None, **times):
    held = stages_per_rank or stages_per_rank_of(schedule) or 2
    actions = actions_of(schedule, ranks=ranks, stages_per_rank=held, microbatches=microbatches)
    return simulate(actions, times=StageTimes.even(ranks * held, **times))


@pytest.mark.parametrize("schedule", StageSchedule)
def test_every_schedule_is_drawn(schedule, matches_golden):
    """Wide with hops, narrow, and in ASCII: the pictures that explain shows."""
    plain = timeline_of(schedule, forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3)
    slow = timeline_of(
        schedule, forward_s=1e-3, backward_input_s=1.3e-3, backward_weight_s=0.8e-3, hop_s=2e-4
    )
    pictures = [
        draw(plain, width=120),
        draw(plain, width=60),
        draw(slow, width=120),
        draw(plain, width=200, is_ascii=True),
    ]
    matches_golden(f"{schedule}.txt", "\n\n".join("\n".join(lines) for lines in pictures) + "\n")


@given(
    schedule=st.sampled_from(StageSchedule),
    ranks=st.integers(1, 12),
    microbatches=st.integers(1, 24),
    width=st.integers(60, 200),
    forward_s=st.floats(1e-4, 10),
    hop_s=st.floats(0, 1),
    is_ascii=st.booleans(),
)
def test_lines_keep_their_width_and_rows_their_length(
    schedule, ranks, microbatches, width, forward_s, hop_s, is_ascii
):
    """A line that wraps tears every row below it."""
    held = stages_per_rank_of(schedule) or 3
    if refusal_of(schedule, ranks=ranks, stages_per_rank=held, microbatches=microbatches) is not None:
        return
    timeline = timeline_of(
        schedule,
        ranks=ranks,
        microbatches=microbatches,
        stages_per_rank=held,
        forward_s=forward_s,
        hop_s=hop_s,
    )
    lines = draw(timeline, width=width, is_ascii=is_ascii)
    assert max(map(len, lines)) <= width
    rows = lines[:ranks]
    assert len({len(row) for row in rows}) == 1
    assert all(row.startswith("rank ") and row.endswith(" %") for row in rows)
    if is_ascii:
        assert "".join(lines).isascii()


def test_a_picture_can_be_read_back():
    """Two ranks, two microbatches, by hand: what runs when, what waits, and how much."""
    lines = draw(timeline_of(StageSchedule.ONE_F_ONE_B, ranks=2, microbatches=2), width=47, is_ascii=True)
    assert lines == [
        "rank 0 F0-F1-......B0----...B1----  33.3 %",
        "rank 1 ...F0-B0----F1-B1----......  33.3 %",
        "F forward, B backward, . bubble",
        "numbers: microbatches",
        "step 9.00 s, bubble 33.3 % of all ranks' time",
    ]


def test_a_rank_with_several_stages_tells_them_apart():
    """Two forward passes of microbatch 0 on one rank are two stages."""
    lines = draw(
        timeline_of(StageSchedule.LOOPED_BFS, ranks=1, microbatches=2, stages_per_rank=2),
        width=66,
        is_ascii=True,
    )
    assert lines[0] == "rank 0 F0a-F1a-F0b-F1b-B1b-----B0b-----B1a-----B0a-----   0.0 %"


def test_bars_too_short_for_a_column_show_what_fills_most():
    """256 microbatches in 60 columns: warm-up, steady state and end are still seen."""
    timeline = timeline_of(StageSchedule.GPIPE, ranks=8, microbatches=256)
    lines = draw(timeline, width=60)
    assert lines[0].startswith("rank 0 FFFF")
    assert lines[0].endswith("BB   2.7 %")
    assert "a column is" in "\n".join(lines)


def test_a_narrow_terminal_is_drawn_for_all_the_same():
    """A pane of 20 columns wraps lines; it must not end explain."""
    assert draw(timeline_of(StageSchedule.ZBV), width=20) == draw(timeline_of(StageSchedule.ZBV), width=40)


def test_passes_without_time_are_not_drawn():
    """A stage that holds nothing trainable has a weight half of 0 seconds."""
    timeline = timeline_of(StageSchedule.ZBV, ranks=2, microbatches=4, backward_weight_s=0.0)
    assert "W" not in "".join(line for line in draw(timeline, width=80) if line.startswith("rank"))
