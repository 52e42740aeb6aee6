"""The pipeline in time: a lane for each place of its axis, a bar for each pass."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.formula_lines import FormulaLines
from trimtab.app.pages.markup import Markup, element
from trimtab.app.pages.quantities import percent, plural
from trimtab.terms import format_seconds

_PASSES = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights"}
"""What the letters of passes mean."""

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")

_WIDTH, _LEFT, _RIGHT = 960, 64, 64
_LANE, _GAP = 22, 4
_FOOT = 20
_CHARACTER = 7.0
"""Pixels of a digit on a bar."""

_MARGIN = 8
"""Pixels that a bar must have besides its number."""

_MOST_TITLED = 1200
"""Bars that say what they are when pointed at; of more, those of one kind in a lane are one shape."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """One pass.

    Args:
        kind: Its letter.
        chunk: Which of the stages of its rank.
        stage: Its stage.
        microbatch: Its microbatch.
        start: In the timeline's unit.
        end: The same.
    """

    kind: str
    chunk: int
    stage: int
    microbatch: int
    start: float
    end: float

    @property
    def style(self) -> str:
        """Class of its colour: passes of a rank's every second stage are lighter."""
        return f"{self.kind}{self.chunk % 2}"


def timeline(document: Facts, lines: FormulaLines) -> Markup | None:
    """The timeline of one share; nothing without a pipeline."""
    pipeline = document["pipeline"]
    if pipeline is None:
        return None
    lanes = [tuple(_bars(lane)) for lane in pipeline["timeline"]["lanes"]]
    microbatches = plural(pipeline["microbatches"], "microbatch", "microbatches")
    about = (
        f"{pipeline['schedule']}: {plural(pipeline['num_stages'], 'stage')} over {pipeline['axis']}, "
        f"{microbatches} in one go. Ranks wait {percent(pipeline['bubble_share'])} of the time; "
        "the share of each place stands at its right."
    )
    return element(
        "section",
        element("h2", "Pipeline ", lines.chip(pipeline["decided_by"])),
        element("p", about, class_="about", data_by=lines.attribute(pipeline["decided_by"])),
        _legend(lanes, pipeline["stages_per_rank"]),
        element(
            "div",
            _drawing(pipeline, lanes),
            class_="scroll wide",
            tabindex=0,
            role="region",
            aria_label="Timeline of the pipeline",
        ),
        id="pipeline",
    )


def _bars(lane: Facts) -> Iterator[_Bar]:
    parsed = [_ACTION.fullmatch(action) for action in lane["actions"]]
    stages = sorted({int(match[1]) for match in parsed if match})
    chunks = {stage: chunk for chunk, stage in enumerate(stages)}
    for match, start, end in zip(parsed, lane["starts"], lane["ends"], strict=True):
        assert match, "the document writes passes as torch does"
        stage = int(match[1])
        yield _Bar(match[2], chunks[stage], stage, int(match[3]), start, end)


def _legend(lanes: Sequence[Sequence[_Bar]], stages_per_rank: int) -> Markup:
    present = {bar.kind for bars in lanes for bar in bars}
    items = [
        element("li", element("i", class_=f"{kind}0"), f" {meaning}")
        for kind, meaning in _PASSES.items()
        if kind in present
    ]
    if stages_per_rank > 1:
        items.append(element("li", "lighter: every second stage of a rank", class_="quiet"))
    return element("ul", *items, class_="legend")


def _drawing(pipeline: Facts, lanes: Sequence[Sequence[_Bar]]) -> Markup:
    facts = pipeline["timeline"]
    scale = _Scale(makespan=facts["makespan"], is_seconds=facts["unit"] == "s", unit=facts["unit"])
    height = len(lanes) * (_LANE + _GAP) + _FOOT
    is_titled = sum(map(len, lanes)) <= _MOST_TITLED
    children: list[Markup] = []
    for place, (bars, lane) in enumerate(zip(lanes, facts["lanes"], strict=True)):
        top = place * (_LANE + _GAP)
        name = f"{pipeline['axis']} {place}"
        children += [
            element("text", name, y=top + _LANE - 6),
            element("rect", x=_LEFT, y=top, width=_WIDTH - _LEFT - _RIGHT, height=_LANE, class_="lane"),
            *(_titled(bars, top, scale) if is_titled else _shapes(bars, top, scale, name)),
            element("text", percent(lane["bubble_share"]), x=_WIDTH, y=top + _LANE - 6, class_="end"),
        ]
    foot = height - 5
    children += [
        element("text", "0", x=_LEFT, y=foot, class_="foot"),
        element("text", scale.shown(scale.makespan), x=_WIDTH - _RIGHT, y=foot, class_="foot end"),
    ]
    said = f"{plural(len(lanes), 'lane')}, {scale.shown(scale.makespan)}, {percent(pipeline['bubble_share'])} of waiting"
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_label=f"Timeline: {said}",
        class_="timeline",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    """From time to the drawing.

    Args:
        makespan: Time at the right end.
        is_seconds: Whether time is in seconds.
        unit: What it is in otherwise.
    """

    makespan: float
    is_seconds: bool
    unit: str

    def x(self, time: float) -> float:
        return _LEFT + self.width(time)

    def width(self, time: float) -> float:
        return time * (_WIDTH - _LEFT - _RIGHT) / (self.makespan or 1.0)

    def shown(self, time: float) -> str:
        return format_seconds(time) if self.is_seconds else f"{time:.3g} × {self.unit}"


def _titled(bars: Sequence[_Bar], top: int, scale: _Scale) -> Iterator[Markup]:
    for bar in bars:
        width = scale.width(bar.end - bar.start)
        title = (
            f"{_PASSES[bar.kind]}, stage {bar.stage}, microbatch {bar.microbatch}: "
            f"{scale.shown(bar.start)} to {scale.shown(bar.end)}"
        )
        shape = element("path", d=_outline(bar, top, scale), class_=bar.style)
        number = None
        if len(str(bar.microbatch)) * _CHARACTER + _MARGIN < width:
            middle = scale.x(bar.start) + width / 2
            number = element(
                "text", bar.microbatch, x=f"{middle:.1f}", y=top + _LANE - 7, class_=f"{bar.style} middle"
            )
        yield element("g", element("title", title), shape, number)


def _shapes(bars: Sequence[_Bar], top: int, scale: _Scale, name: str) -> Iterator[Markup]:
    for style in sorted({bar.style for bar in bars}):
        chosen = [bar for bar in bars if bar.style == style]
        title = element("title", f"{name}: {_PASSES[chosen[0].kind]}, {len(chosen)} times")
        outline = "".join(_outline(bar, top, scale) for bar in chosen)
        yield element("g", title, element("path", d=outline, class_=style))


def _outline(bar: _Bar, top: int, scale: _Scale) -> str:
    width = scale.width(bar.end - bar.start)
    return f"M{scale.x(bar.start):.1f} {top}h{width:.1f}v{_LANE}h-{width:.1f}z"
