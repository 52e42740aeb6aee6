"""A study as a page that stands alone: every trial by each objective and each knob; it loads itself anew until all is over."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.app.pages.markup import Markup, element, joined, trusted
from trimtab.app.pages.svg_marks import dot, line, words

_WIDTH, _HEIGHT = 340, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 30, 40
_ACROSS = 3
"""Panels in a row."""

_DONE, _CUT, _FRONT = "#2563b0", "#9aa5b1", "#c2561a"
_AGAIN_S = 5
"""Between two loads of a page whose study goes on."""

_STYLE = "body{font:14px system-ui,sans-serif;margin:1.5em;max-width:72em}table{border-collapse:collapse}td,th{padding:.2em .8em .2em 0;text-align:left;vertical-align:top}"


def tuning_page(document: Mapping[str, Any], *, is_over: bool) -> str:
    """The page of a study.

    Args:
        document: What ``tune --json`` prints, as far as the study has come.
        is_over: Whether nothing more is to come.
    """
    trials = [trial for trial in document["trials"] if trial["values"]]
    objectives = list(document["objectives"])
    panels = [_by_number(trials, name, document) for name in objectives]
    if len(objectives) > 1:
        panels.append(_against(trials, objectives[0], objectives[1], document))
    knobs = dict.fromkeys(name for trial in trials for name in trial["params"])
    panels += [_by_knob(trials, knob, objectives[0], document) for knob in knobs]
    again = None if is_over else element("meta", http_equiv="refresh", content=_AGAIN_S)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        again,
        element("title", document["study"]),
        element("style", trusted(_STYLE)),
    )
    state = document["reason"] or "trials are being made"
    body = element(
        "body",
        element("h1", document["study"]),
        element("p", f"{len(document['trials'])} trials; {state}. Blue: measured; grey: cut short; "
                "orange: no other beats it."),
        _picture([panel for panel in panels if panel.points]),
        _table(document, objectives),
    )  # fmt: skip
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Point:
    x: float
    y: float
    color: str
    said: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Panel:
    title: str
    foot: str
    points: Sequence[_Point]
    names: Sequence[str] = ()
    """Of whole places across, where they are no numbers."""


def _by_number(trials: Sequence[Mapping[str, Any]], name: str, document: Mapping[str, Any]) -> _Panel:
    return _Panel(
        title=name, foot="trial", points=_points(trials, lambda trial: trial["number"], name, document)
    )


def _against(
    trials: Sequence[Mapping[str, Any]], first: str, second: str, document: Mapping[str, Any]
) -> _Panel:
    points = _points(
        [trial for trial in trials if second in trial["values"]],
        lambda trial: trial["values"][second],
        first,
        document,
    )
    return _Panel(title=f"{first} against {second}", foot=second, points=points)


def _by_knob(
    trials: Sequence[Mapping[str, Any]], knob: str, name: str, document: Mapping[str, Any]
) -> _Panel:
    values = [trial["params"][knob] for trial in trials]
    if all(isinstance(value, int | float) for value in values):
        points = _points(trials, lambda trial: trial["params"][knob], name, document)
        return _Panel(title=f"{name} by {knob}", foot=knob, points=points)
    names = list(dict.fromkeys(str(value) for value in values))
    points = _points(trials, lambda trial: names.index(str(trial["params"][knob])), name, document)
    return _Panel(
        title=f"{name} by {knob}", foot=knob, points=points, names=[text or "(none)" for text in names]
    )


def _points(
    trials: Sequence[Mapping[str, Any]], across: Any, name: str, document: Mapping[str, Any]
) -> list[_Point]:  # across: from a trial to its place
    return [
        _Point(
            x=float(across(trial)),
            y=float(trial["values"][name]),
            color=_color(trial, document),
            said=f"trial {trial['number']}: {trial['values'][name]:.6g}",
        )
        for trial in trials
        if name in trial["values"]
    ]


def _color(trial: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    if trial["number"] in document["front"]:
        return _FRONT
    return _DONE if trial["state"] == "done" else _CUT


def _picture(panels: Sequence[_Panel]) -> Markup | None:
    if not panels:
        return None
    rows = -(-len(panels) // _ACROSS)
    width, height = _WIDTH * min(len(panels), _ACROSS), _HEIGHT * rows
    return element(
        "svg",
        joined(
            element(
                "g",
                _drawn(panel),
                transform=f"translate({_WIDTH * (number % _ACROSS)} {_HEIGHT * (number // _ACROSS)})",
            )
            for number, panel in enumerate(panels)
        ),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        font_family="system-ui, sans-serif",
    )


def _drawn(panel: _Panel) -> Markup:
    xs, ys = [point.x for point in panel.points], [point.y for point in panel.points]
    across = _Scale(values=xs, start=_LEFT + 8, end=_WIDTH - _RIGHT - 8, is_plain=bool(panel.names))
    up = _Scale(values=ys, start=_HEIGHT - _BOTTOM - 8, end=_TOP + 8, is_plain=False)
    parts: list[Markup] = [words(_LEFT, _TOP - 10, panel.title[:46], size=12, weight="600")]
    for value in up.ticks():
        parts.append(line(_LEFT, up.at(value), _WIDTH - _RIGHT, up.at(value), "#eeeeee"))
        parts.append(words(_LEFT - 6, up.at(value) + 3.5, f"{value:,.4g}", size=10, anchor="end"))
    for value in across.ticks() if not panel.names else range(len(panel.names)):
        label = _short(panel.names[int(value)]) if panel.names else f"{value:,.4g}"
        parts.append(words(across.at(value), _HEIGHT - _BOTTOM + 15, label, size=10, anchor="middle"))
    parts.append(words(_LEFT, _HEIGHT - _BOTTOM + 30, panel.foot[:46], size=10, color="#555555"))
    # The best stand above the others.
    parts += [
        element("g", element("title", point.said), dot(across.at(point.x), up.at(point.y), 3.5, point.color))
        for point in sorted(panel.points, key=lambda point: point.color == _FRONT)
    ]
    return joined(parts)


def _short(name: str) -> str:
    """A name below its place: formulas differ at their ends."""
    return name if len(name) <= 14 else f"…{name[-13:]}"


class _Scale:
    """From values to places: by factors where the greatest is many times the least, else by differences."""

    def __init__(self, *, values: Sequence[float], start: float, end: float, is_plain: bool) -> None:
        self._least, self._most = min(values), max(values)
        self._start, self._end = start, end
        self._is_log = not is_plain and self._least > 0 and self._most >= 8 * self._least

    def at(self, value: float) -> float:
        if self._most == self._least:
            return (self._start + self._end) / 2
        if self._is_log:
            share = math.log(value / self._least) / math.log(self._most / self._least)
        else:
            share = (value - self._least) / (self._most - self._least)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        if self._most == self._least:
            return [self._least]
        if self._is_log:
            powers = range(math.floor(math.log10(self._least)), math.ceil(math.log10(self._most)) + 1)
            found = [
                digit * 10.0**power
                for power in powers
                for digit in (1, 3)
                if self._least <= digit * 10.0**power <= self._most
            ]
            if len(found) >= 2:
                return found[:: -(-len(found) // 5)]
        step = 10.0 ** math.floor(math.log10(self._most - self._least))
        step = next(
            step * factor
            for factor in (0.2, 0.5, 1, 2, 5)
            if (self._most - self._least) / (step * factor) <= 5
        )
        first = math.ceil(self._least / step)
        return [number * step for number in range(first, math.floor(self._most / step) + 1)]


def _table(document: Mapping[str, Any], objectives: Sequence[str]) -> Markup:
    head = element("tr", *(element("th", name) for name in ("trial", "state", *objectives, "values")))
    rows = [
        element(
            "tr",
            element("td", str(trial["number"])),
            element("td", trial["state"]),
            *(
                element("td", f"{trial['values'][name]:,.6g}" if name in trial["values"] else "")
                for name in objectives
            ),
            element("td", ", ".join(f"{name}: {value}" for name, value in trial["params"].items())
                    + (f"; {trial['reason']}" if trial["reason"] else "")),
        )
        for trial in document["trials"]
    ]  # fmt: skip
    return element("table", head, *rows)
