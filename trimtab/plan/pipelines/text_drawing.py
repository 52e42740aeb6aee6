"""A timeline as lines of text: a row for each rank, time from left to right."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from textwrap import wrap

from trimtab.plan.pipelines.actions import Action, ActionKind
from trimtab.plan.pipelines.timeline import Bar, Timeline
from trimtab.terms import format_seconds

MIN_WIDTH = 40
"""Narrower terminals are drawn for as if they had this many columns."""

MEANINGS: Mapping[ActionKind, str] = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.BACKWARD_INPUT: "backward, input half",
    ActionKind.BACKWARD_WEIGHT: "backward, weight half",
}
"""What a legend calls each kind of action."""


def draw(timeline: Timeline, *, width: int, is_ascii: bool = False) -> list[str]:
    """The timeline in lines of at most ``width`` characters: a row and a bubble share for each rank, a legend.

    A bar begins with the letter of its kind and, where they fit, the number of its microbatch and a letter that
    tells which of the rank's stages runs. If a bar is too short for a column of its own, columns show instead
    what fills most of them.
    """
    pen = _ASCII if is_ascii else _UNICODE
    width = max(width, MIN_WIDTH)
    digits = len(str(len(timeline.bars) - 1))
    labels = [f"rank {rank:>{digits}} " for rank in range(len(timeline.bars))]
    shares = [f" {100 * share:5.1f} %" for share in timeline.bubble_shares]
    margin = max((len(label + share) for label, share in zip(labels, shares, strict=True)), default=0)
    scale = _Scale.of(timeline, available=width - margin)
    if scale.is_too_coarse_for(timeline):
        rows = [_row_of_most(bars, scale, pen) for bars in timeline.bars]
        names: _Names | None = None
    else:
        names = _Names.of(timeline, scale)
        rows = [_row_of_names(bars, scale, pen, names) for bars in timeline.bars]
    lines = [label + row + share for label, row, share in zip(labels, rows, shares, strict=True)]
    legend = _legend(timeline, scale, pen, names)
    return [*lines, *(line for sentence in legend for line in wrap(sentence, width))]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pen:
    """The characters for waiting, and for a bar behind its name."""

    bubble: str
    rest: str


_UNICODE = _Pen(bubble="·", rest="─")
_ASCII = _Pen(bubble=".", rest="-")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    """Time cut into columns of ``column_s`` seconds."""

    columns: int
    column_s: float

    @classmethod
    def of(cls, timeline: Timeline, *, available: int) -> "_Scale":
        """As many columns as are available; if all bars are whole numbers of some unit, so are they in columns."""
        makespan_s = timeline.makespan_s
        units = _num_units(timeline)
        columns = available // units * units if 0 < units <= available else available
        return cls(columns=columns, column_s=makespan_s / columns)

    def edge(self, time_s: float) -> int:
        """The border between columns that is nearest to a time."""
        return round(time_s / self.column_s) if self.column_s else 0

    def is_too_coarse_for(self, timeline: Timeline) -> bool:
        """Whether a bar would vanish between two borders."""
        return any(
            self.edge(bar.end_s) == self.edge(bar.start_s)
            for bars in timeline.bars
            for bar in bars
            if bar.duration_s
        )


def _num_units(timeline: Timeline) -> int:
    """The length of the step in units of the shortest bar; 0 if some bar does not start and end at a whole one."""
    unit_s = min((bar.duration_s for bars in timeline.bars for bar in bars if bar.duration_s), default=0.0)
    if not unit_s:
        return 0
    ends = (bar.end_s / unit_s for bars in timeline.bars for bar in bars)
    starts = (bar.start_s / unit_s for bars in timeline.bars for bar in bars)
    if all(abs(edge - round(edge)) < _ROUNDING for edges in (starts, ends) for edge in edges):
        return round(timeline.makespan_s / unit_s)
    return 0


_ROUNDING = 1e-6
"""Units by which an edge may miss a whole number: sums of many floats do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Names:
    """What stands at the beginning of bars.

    Args:
        letters: For each stage, a letter by its order among the stages of its rank; empty if none are shown.
    """

    letters: Mapping[int, str]

    @classmethod
    def of(cls, timeline: Timeline, scale: _Scale) -> "_Names":
        """Letters are shown if ranks hold several stages, and every bar has room for its letter."""
        lettered = cls(letters=_letters(timeline))
        has_room = all(
            len(lettered.full(bar.action)) <= _size(bar, scale)
            for bars in timeline.bars
            for bar in bars
            if bar.duration_s
        )
        return lettered if has_room else cls(letters={})

    def full(self, action: Action) -> str:
        """The name with everything that this picture shows."""
        return f"{action.kind}{action.microbatch}{self.letters.get(action.stage, '')}"

    def fitting(self, action: Action, size: int) -> str:
        """The name, or only its first letter, for a bar of ``size`` columns."""
        full = self.full(action)
        return full if len(full) <= size else str(action.kind)


def _letters(timeline: Timeline) -> Mapping[int, str]:
    held = [sorted({bar.action.stage for bar in bars}) for bars in timeline.bars]
    if not 1 < max(map(len, held), default=0) <= len(ascii_lowercase):
        return {}
    return {stage: letter for stages in held for stage, letter in zip(stages, ascii_lowercase, strict=False)}


def _size(bar: Bar, scale: _Scale) -> int:
    return scale.edge(bar.end_s) - scale.edge(bar.start_s)


def _row_of_names(bars: Sequence[Bar], scale: _Scale, pen: _Pen, names: _Names) -> str:
    row, drawn = [], 0
    for bar in bars:
        size = _size(bar, scale)
        if size:
            start = scale.edge(bar.start_s)
            row += [pen.bubble * (start - drawn), names.fitting(bar.action, size).ljust(size, pen.rest)]
            drawn = start + size
    return "".join(row).ljust(scale.columns, pen.bubble)


def _row_of_most(bars: Sequence[Bar], scale: _Scale, pen: _Pen) -> str:
    """For each column the letter of the kind that takes most of it, or the mark of waiting."""
    filled: list[dict[ActionKind, float]] = [defaultdict(float) for _ in range(scale.columns)]
    for bar in bars:
        first = int(bar.start_s / scale.column_s)
        last = min(int(bar.end_s / scale.column_s), scale.columns - 1)
        for column in range(first, last + 1):
            start_s = max(bar.start_s, column * scale.column_s)
            end_s = min(bar.end_s, (column + 1) * scale.column_s)
            filled[column][bar.action.kind] += end_s - start_s
    return "".join(_most_of(column, scale, pen) for column in filled)


def _most_of(filled_s: Mapping[ActionKind, float], scale: _Scale, pen: _Pen) -> str:
    waiting_s = scale.column_s - sum(filled_s.values())
    kind = max(filled_s, key=filled_s.__getitem__, default=None)
    return pen.bubble if kind is None or filled_s[kind] < waiting_s else kind


def _legend(timeline: Timeline, scale: _Scale, pen: _Pen, names: _Names | None) -> list[str]:
    present = {bar.action.kind for bars in timeline.bars for bar in bars}
    marks = [f"{kind} {meaning}" for kind, meaning in MEANINGS.items() if kind in present]
    sentences = [", ".join([*marks, f"{pen.bubble} bubble"])]
    if names is None:
        sentences.append(f"a column is {format_seconds(scale.column_s)} and shows what takes most of it")
    elif names.letters:
        sentences.append("numbers: microbatches; behind them: a for the rank's first stage, b for its second")
    else:
        sentences.append("numbers: microbatches")
    sentences.append(
        f"step {format_seconds(timeline.makespan_s)}, bubble {100 * timeline.bubble_share:.1f} % of all ranks' time"
    )
    return sentences
