"""A timeline as a small self-contained SVG, to stand in a page."""

from collections.abc import Mapping, Sequence
from html import escape

from trimtab.plan.pipelines.actions import ActionKind
from trimtab.plan.pipelines.text_drawing import MEANINGS
from trimtab.plan.pipelines.timeline import Bar, Timeline
from trimtab.terms import format_seconds

FILLS: Mapping[ActionKind, tuple[str, str]] = {
    ActionKind.FORWARD: ("#0072B2", "#FFFFFF"),
    ActionKind.BACKWARD: ("#E69F00", "#000000"),
    ActionKind.BACKWARD_INPUT: ("#CC79A7", "#000000"),
    ActionKind.BACKWARD_WEIGHT: ("#009E73", "#000000"),
}
"""Colours of a bar and of the text on it. Okabe and Ito's palette, told apart with any colour vision:
https://jfly.uni-koeln.de/color/. Every text has a contrast of at least 4.5 to its bar."""

_WIDTH = 960
_LEFT, _RIGHT = 64, 64
_ROW, _GAP = 22, 4
_LEGEND = 30
_CHARACTER = 6.5
"""Pixels: a digit of the text on bars, at 11 pixels."""

_MAX_TITLED_BARS = 2000
"""Bars with a title and a number each; longer timelines have one shape for each rank and kind."""


def svg(timeline: Timeline) -> str:
    """The timeline as an SVG element: bars with titles, bubble shares, a legend.

    Text takes the colour of the page around it, so it reads on light and dark ground.
    """
    height = len(timeline.bars) * (_ROW + _GAP) + _LEGEND
    summary = (
        f"{len(timeline.bars)} ranks, step {format_seconds(timeline.makespan_s)}, "
        f"bubble {100 * timeline.bubble_share:.1f} %"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            f'font-family="ui-monospace, monospace" font-size="11" fill="currentColor">',
            f"<title>Pipeline timeline: {escape(summary)}</title>",
            *(line for rank in range(len(timeline.bars)) for line in _row(timeline, rank)),
            *_legend(timeline, top=height - _LEGEND + 8, summary=summary),
            "</svg>",
        ]
    )


def _row(timeline: Timeline, rank: int) -> list[str]:
    top = rank * (_ROW + _GAP)
    middle = top + _ROW - 7
    bars, share = timeline.bars[rank], timeline.bubble_shares[rank]
    is_titled = sum(map(len, timeline.bars)) <= _MAX_TITLED_BARS
    scale = (_WIDTH - _LEFT - _RIGHT) / (timeline.makespan_s or 1.0)
    return [
        f'<text x="0" y="{middle}">rank {rank}</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_ROW}" fill-opacity="0.1">'
        f"<title>rank {rank} waits {100 * share:.1f} % of the step</title></rect>",
        *(_titled(bars, top, scale) if is_titled else _shapes(rank, bars, top, scale)),
        f'<text x="{_WIDTH - _RIGHT + 6}" y="{middle}">{100 * share:.1f} %</text>',
    ]


def _titled(bars: Sequence[Bar], top: int, scale: float) -> list[str]:
    lines = []
    for bar in bars:
        action = bar.action
        fill, ink = FILLS[action.kind]
        left, size = _LEFT + bar.start_s * scale, bar.duration_s * scale
        title = (
            f"{MEANINGS[action.kind]}, stage {action.stage}, microbatch {action.microbatch}: "
            f"{format_seconds(bar.start_s)} to {format_seconds(bar.end_s)}"
        )
        lines.append(
            f'<rect x="{left:.2f}" y="{top}" width="{size:.2f}" height="{_ROW}" fill="{fill}" '
            f'stroke="#FFFFFF" stroke-width="0.5"><title>{title}</title></rect>'
        )
        name = f"{action.kind}{action.microbatch}"
        if len(name) * _CHARACTER < size:
            lines.append(
                f'<text x="{left + size / 2:.2f}" y="{top + _ROW - 7}" text-anchor="middle" '
                f'pointer-events="none" fill="{ink}">{name}</text>'
            )
    return lines


def _shapes(rank: int, bars: Sequence[Bar], top: int, scale: float) -> list[str]:
    lines = []
    for kind, (fill, _) in FILLS.items():
        chosen = [bar for bar in bars if bar.action.kind is kind]
        if chosen:
            path = "".join(
                f"M{_LEFT + bar.start_s * scale:.2f} {top}h{bar.duration_s * scale:.2f}v{_ROW}"
                f"h-{bar.duration_s * scale:.2f}z"
                for bar in chosen
            )
            title = f"rank {rank}: {MEANINGS[kind]}, {len(chosen)} times"
            lines.append(f'<path d="{path}" fill="{fill}"><title>{title}</title></path>')
    return lines


def _legend(timeline: Timeline, *, top: int, summary: str) -> list[str]:
    present = {bar.action.kind for bars in timeline.bars for bar in bars}
    lines, left = [], _LEFT
    for kind, meaning in MEANINGS.items():
        if kind in present:
            lines += [
                f'<rect x="{left}" y="{top}" width="12" height="12" fill="{FILLS[kind][0]}"/>',
                f'<text x="{left + 18}" y="{top + 10}">{kind} {meaning}</text>',
            ]
            left += 18 + round((len(meaning) + 2) * 6.7) + 16
    return [*lines, f'<text x="{_WIDTH}" y="{top + 10}" text-anchor="end">{escape(summary)}</text>']
