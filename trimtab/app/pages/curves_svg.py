"""Cost curves as a picture that stands alone: step time, dollars, time to the end, over numbers of devices."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimtab.app.pages.markup import Markup, element, joined
from trimtab.app.pages.svg_marks import dot, line, words

_WIDTH, _HEIGHT = 330, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 34, 40
_MOST_LINES = 8
"""Across a panel."""

_COLORS = ("#2563b0", "#c2561a", "#1f8a5b", "#8a3fa0", "#7a6a12")
"""Told apart in print and by those who do not see red and green apart; names stand at the lines besides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One number of devices.

    Args:
        devices: How many.
        low, expected, high: Of the figure; nine of ten lie between low and high.
    """

    devices: int
    low: float
    expected: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One cluster.

    Args:
        name: Of the cluster.
        points: In order of devices.
    """

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One figure.

    Args:
        title: What it is, with its unit.
        curves: One a cluster.
        say: How a figure is written at the axis.
        unit: In which the axis counts: its lines stand at round numbers of it.
    """

    title: str
    curves: Sequence[Curve]
    say: Callable[[float], str]
    unit: float = 1.0


def curves_svg(title: str, notes: Sequence[str], panels: Sequence[Panel]) -> str:
    """A whole SVG document: panels side by side, both axes logarithmic.

    Args:
        title: Of the picture.
        notes: Lines below it: prices with their dates, what is assumed.
        panels: At least one, each with a point at least.
    """
    width = _WIDTH * len(panels)
    height = _HEIGHT + 34 + 15 * (len(notes) + 1)
    names = [curve.name for curve in panels[0].curves]
    parts: list[Markup] = [
        element("title", title),
        element("rect", width=width, height=height, fill="#ffffff"),
        words(12, 20, title, size=14, weight="600"),
        *(
            _legend(number, name, x=12 + 185 * number, y=height - 15 * len(notes) - 10)
            for number, name in enumerate(names)
        ),
        *(
            words(12, height - 15 * (len(notes) - number) + 6, note, size=10, color="#555555")
            for number, note in enumerate(notes)
        ),
        *(
            element("g", _panel(panel), transform=f"translate({_WIDTH * number} 24)")
            for number, panel in enumerate(panels)
        ),
    ]
    picture = element(
        "svg",
        joined(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        font_family="system-ui, sans-serif",
    )
    return f"{picture}\n"


def _panel(panel: Panel) -> Markup:
    points = [point for curve in panel.curves for point in curve.points]
    across = _Scale.over([point.devices for point in points], _LEFT, _WIDTH - _RIGHT)
    up = _Scale.over(
        [value for point in points for value in (point.low, point.high)], _HEIGHT - _BOTTOM, _TOP
    )
    counts = sorted({point.devices for point in points})
    shown = counts if len(counts) <= 8 else counts[:: -(-len(counts) // 8)]
    parts: list[Markup] = [words(_LEFT, _TOP - 10, panel.title, size=12, weight="600")]
    for devices in shown:
        x = across.at(devices)
        parts.append(line(x, _TOP, x, _HEIGHT - _BOTTOM, "#eeeeee"))
        parts.append(words(x, _HEIGHT - _BOTTOM + 15, f"{devices:,}", size=10, anchor="middle"))
    for value in up.ticks(panel.unit):
        y = up.at(value)
        parts.append(line(_LEFT, y, _WIDTH - _RIGHT, y, "#eeeeee"))
        parts.append(words(_LEFT - 6, y + 3.5, panel.say(value), size=10, anchor="end"))
    parts.append(words(_LEFT, _HEIGHT - _BOTTOM + 30, "devices", size=10, color="#555555"))
    for number, curve in enumerate(panel.curves):
        if curve.points:
            parts.append(_drawn(curve, _COLORS[number % len(_COLORS)], across, up))
    return joined(parts)


def _drawn(curve: Curve, color: str, across: "_Scale", up: "_Scale") -> Markup:
    def path(pairs: Sequence[tuple[float, float]]) -> str:
        return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in pairs)

    top = [(across.at(point.devices), up.at(point.high)) for point in curve.points]
    bottom = [(across.at(point.devices), up.at(point.low)) for point in reversed(curve.points)]
    middle = [(across.at(point.devices), up.at(point.expected)) for point in curve.points]
    dots = [dot(x, y, 2.5, color) for x, y in middle]
    return joined(
        [
            element("path", d=path([*top, *bottom]) + "Z", fill=color, fill_opacity="0.12"),
            element("path", d=path(middle), fill="none", stroke=color, stroke_width="1.8"),
            *dots,
        ]
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    """From values to places, logarithmic."""

    least: float
    most: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> "_Scale":
        least, most = min(values), max(values)
        room = (most / least) ** 0.06 if most > least else 1.5
        return cls(least=least / room, most=most * room, start=start, end=end)

    def at(self, value: float) -> float:
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return self.start + share * (self.end - self.start)

    def ticks(self, unit: float) -> list[float]:
        """Round numbers of a unit, few enough to be read."""
        first = math.floor(math.log10(self.least / unit))
        last = math.ceil(math.log10(self.most / unit))
        for digits in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
            found = [
                digit * 10.0**power * unit
                for power in range(first, last + 1)
                for digit in digits
                if self.least <= digit * 10.0**power * unit <= self.most
            ]
            if len(found) <= _MOST_LINES:
                return found
        return found[:: -(-len(found) // _MOST_LINES)]


def _legend(number: int, name: str, *, x: float, y: float) -> Markup:
    color = _COLORS[number % len(_COLORS)]
    return joined(
        [
            element("path", d=f"M{x} {y - 4}h18", stroke=color, stroke_width="3"),
            words(x + 24, y, name, size=11),
        ]
    )
