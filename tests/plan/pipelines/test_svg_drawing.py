from xml.etree import ElementTree as ET

import pytest

from trimtab.plan.pipelines import StageSchedule, StageTimes, actions_of, simulate, stages_per_rank_of, svg
from trimtab.plan.pipelines.svg_drawing import FILLS

SVG = "{http://www.w3.org/2000/svg}"


def timeline_of(schedule, *, ranks=4, microbatches=8):
    held = stages_per_rank_of(schedule) or 2
    actions = actions_of(schedule, ranks=ranks, stages_per_rank=held, microbatches=microbatches)
    return simulate(actions, times=StageTimes.even(ranks * held, forward_s=1e-3))


def luminance(colour):
    """Relative luminance, WCAG 2.2."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_picture_as_before(matches_golden):
    """What stands in the HTML page changes only when somebody means it to."""
    matches_golden("zbv.svg", svg(timeline_of(StageSchedule.ZBV, ranks=2, microbatches=4)) + "\n")


@pytest.mark.parametrize("schedule", StageSchedule)
def test_every_action_is_a_bar_with_a_title(schedule):
    """Who hovers, or hears the page, learns what a bar is."""
    timeline = timeline_of(schedule)
    root = ET.fromstring(svg(timeline))
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert root.get("role") == "img"
    assert titles[0].startswith("Pipeline timeline: 4 ranks, step ")
    bars = [title for title in titles if ", stage " in title]
    assert len(bars) == sum(map(len, timeline.bars))
    assert len(set(bars)) == len(bars)


def test_bars_lie_inside_the_picture():
    """A bar beyond the border is cut off in the page."""
    root = ET.fromstring(svg(timeline_of(StageSchedule.DUALPIPEV)))
    width, height = map(float, root.get("viewBox").split()[2:])
    for bar in root.iter(f"{SVG}rect"):
        assert 0 <= float(bar.get("x")) <= float(bar.get("x")) + float(bar.get("width")) <= width
        assert 0 <= float(bar.get("y")) + float(bar.get("height")) <= height


@pytest.mark.parametrize("kind", FILLS)
def test_text_on_bars_has_contrast(kind):
    """At least 4.5 to 1, WCAG 2.2 success criterion 1.4.3."""
    lighter, darker = sorted(map(luminance, FILLS[kind]), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_a_large_pipeline_stays_small():
    """Eight thousand bars with titles would be two megabytes in a page that people mail."""
    picture = svg(timeline_of(StageSchedule.ONE_F_ONE_B, ranks=16, microbatches=256))
    assert len(picture) < 300_000
    titles = [title.text for title in ET.fromstring(picture).iter(f"{SVG}title")]
    assert "rank 3: backward, 256 times" in titles


def test_nothing_is_loaded_from_elsewhere():
    """The page is read offline."""
    picture = svg(timeline_of(StageSchedule.ZBV))
    assert picture.count("http") == 1
    assert "<script" not in picture
