"""The page about pipelines shows what the code does: pictures, tables, formulas and messages, recomputed."""

import re

import pytest

from tests.house.markdown import blocks, read, table_after
from trimtab.plan.pipelines import (
    LayersError,
    StageSchedule,
    StageTimes,
    actions_of,
    draw,
    in_flight,
    refusal_of,
    simulate,
    stages_of_layers,
    stages_per_rank_of,
    transfers,
)

PAGE = "docs/pipelines.md"
TEXTS = [block.text for block in blocks("text") if block.document == PAGE]
COLUMNS = 120


def actions(schedule, *, ranks=4, microbatches=8, stages_per_rank=2):
    held = stages_per_rank_of(schedule) or stages_per_rank
    return held, actions_of(schedule, ranks=ranks, stages_per_rank=held, microbatches=microbatches)


def timeline_of(schedule, **shape):
    """A rank's layers take 1 ms for each of the three passes, however many stages they make."""
    held, in_order = actions(schedule, **shape)
    pass_s = 1e-3 / held
    times = StageTimes.even(
        held * len(in_order), forward_s=pass_s, backward_input_s=pass_s, backward_weight_s=pass_s
    )
    return simulate(in_order, times=times)


def schedule_named(cell):
    return StageSchedule(re.fullmatch(r"`(\w+)(?:\(v\))?`", cell)[1])


@pytest.mark.parametrize("schedule", StageSchedule)
def test_its_picture_is_drawn(schedule):
    """The picture is how a reader decides; it must be the one that explain shows."""
    title = f"{schedule} on 4 ranks, 8 microbatches\n\n"
    shown = [text.removeprefix(title) for text in TEXTS if text.startswith(title)]
    assert shown == ["\n".join(draw(timeline_of(schedule), width=COLUMNS)) + "\n"]


def test_every_schedule_is_in_every_table():
    """A schedule that a table leaves out does not exist for who reads it."""
    for heading in ("## Which one", "## Compared", "## Formulas"):
        assert [schedule_named(row[0]) for row in table_after(PAGE, heading)] == list(StageSchedule)


@pytest.mark.parametrize("row", table_after(PAGE, "## Compared"), ids=lambda row: row[0])
def test_figures_compared_are_computed(row):
    """Step, bubble, what is held and what is sent, of the pictures."""
    schedule = schedule_named(row[0])
    held, in_order = actions(schedule)
    timeline, sent = timeline_of(schedule), transfers(in_order)
    assert row[1:] == [
        str(held),
        f"{1e3 * timeline.makespan_s:.1f}",
        f"{100 * timeline.bubble_share:.1f}",
        ", ".join(f"{count / held:g}" for count in in_flight(in_order).ranks),
        str(sum(sent.activations.values()) + sum(sent.gradients.values())),
    ]


@pytest.mark.parametrize("row", table_after(PAGE, "## Formulas"), ids=lambda row: row[0])
def test_formulas_are_what_is_simulated(row):
    """They are evaluated as they stand on the page."""
    schedule = schedule_named(row[0])
    bubble, held_by = (compile(cell.strip("`"), PAGE, "eval") for cell in row[1:])
    for p in (2, 4, 8):
        for m in (2 * p, 3 * p, 5 * p):
            for stages_per_rank in (1, 2, 3):
                shape = {"ranks": p, "microbatches": m, "stages_per_rank": stages_per_rank}
                v, in_order = actions(schedule, **shape)
                names = {"p": p, "m": m, "v": v}
                assert timeline_of(schedule, **shape).bubble_share == pytest.approx(eval(bubble, names))
                for r, count in enumerate(in_flight(in_order).ranks):
                    assert count / v == pytest.approx(eval(held_by, {**names, "r": r})), (shape, r)


def test_refusals_are_those_that_are_given():
    """A reader who searches for a message must find it."""
    given = [
        str(refusal_of(StageSchedule(schedule), ranks=4, stages_per_rank=held, microbatches=microbatches))
        for schedule, held, microbatches in (
            ("1f1b", 1, 3),
            ("interleaved_1f1b", 2, 11),
            ("interleaved_zero_bubble", 2, 13),
            ("zbv", 3, 8),
            ("dualpipev", 2, 7),
        )
    ]
    assert "\n".join(given) + "\n" in TEXTS


def test_layers_fall_on_stages_as_the_page_says():
    """`N layers on M stages: sizes`, and the layer that is placed, if one is."""
    pattern = r"(\d+) layers on (\d+) stages(?:, layer (\d+) placed on stage (\d+))?: ([\d, ]+)\."
    found = re.findall(pattern, read(PAGE))
    assert len(found) == 2
    for layers, num_stages, layer, stage, sizes in found:
        placed = {int(layer): int(stage)} if layer else {}
        stages = stages_of_layers(int(layers), int(num_stages), placed=placed)
        assert [stages.count(number) for number in range(int(num_stages))] == [
            int(size) for size in sizes.split(", ")
        ]


def test_layers_that_cannot_be_placed_give_the_messages_shown():
    """The first line of each says what was asked for, the second what is answered."""
    asked = next(text for text in TEXTS if text.startswith("8 layers, 4 stages"))
    for case in asked.strip().split("\n\n"):
        question, message = case.split("\n")
        num_layers, num_stages = map(int, re.match(r"(\d+) layers, (\d+) stages", question).groups())
        placed = {
            int(layer): int(stage) for layer, stage in re.findall(r"layer (\d+) on stage (\d+)", question)
        }
        with pytest.raises(LayersError) as caught:
            stages_of_layers(num_layers, num_stages, placed=placed)
        assert str(caught.value) == message
