"""What a change of a job does, in text: before and after side by side."""

from collections.abc import Iterator

from trimtab.app.explanation_text.lines import MIN_WIDTH, Line, Piece, Style, heading, row
from trimtab.app.explanation_text.quantities import counted, flops, share
from trimtab.cost.explanation.comparing import Comparison, FigureChange, Unit
from trimtab.terms import format_bytes, format_seconds

_LABELS = 22
"""Columns of the subjects."""

_INDENT = (Piece("  "),)


def comparison_lines(found: Comparison, *, width: int) -> Iterator[Line]:
    """Everything that differs, in lines of at most ``width`` columns (60 if there are fewer)."""
    width = max(width, MIN_WIDTH)
    yield heading(f"{found.before} and {found.after}" if found.before != found.after else found.before)
    if found.is_same:
        yield (Piece("  the same plan", Style.GOOD),)
        return
    for section in (_formulas, _facts, _rows, _figures, _groups):
        lines = list(section(found, width))
        if lines:
            yield ()
            yield from lines


def _formulas(found: Comparison, width: int) -> Iterator[Line]:
    for mark, style, formulas in (("- ", Style.BAD, found.removed), ("+ ", Style.GOOD, found.added)):
        for formula in formulas:
            yield from row(
                formula.text,
                width=width,
                place=formula.at,
                indent=(Piece(f"  {mark}", style),),
                further_indent=(Piece("    "),),
                style=style,
            )


def _facts(found: Comparison, width: int) -> Iterator[Line]:
    for change in found.facts:
        text = f"{change.before or 'nothing'} -> {change.after or 'nothing'}"
        place = _places(change.before_at, change.after_at)
        yield from row(
            text, width=width, label=change.subject, label_width=_LABELS, place=place, indent=_INDENT
        )


def _rows(found: Comparison, width: int) -> Iterator[Line]:
    if found.rows:
        yield heading("decided otherwise")
    for change in found.rows:
        names = ", ".join(change.rows[:_SHOWN])
        rest = len(change.rows) - _SHOWN
        more = f" and {rest} more" if rest > 0 else ""
        yield from row(
            f"{names}{more} ({counted(change.num_rows, 'row')})",
            width=width,
            label=change.table.value,
            label_width=_LABELS,
            indent=_INDENT,
        )
        yield from row(
            f"{change.property}: {change.before or 'nothing'} -> {change.after or 'nothing'}",
            width=width,
            place=_places(change.before_at, change.after_at),
            indent=(Piece(" " * (_LABELS + 4)),),
        )


_SHOWN = 4
"""Names of rows before the rest is counted."""


def _figures(found: Comparison, width: int) -> Iterator[Line]:
    if found.figures:
        yield heading("all ranks")
    for change in found.figures:
        yield from _figure(change, width, 2)


def _groups(found: Comparison, width: int) -> Iterator[Line]:
    if found.groups:
        yield heading("one rank of each group")
    for group in found.groups:
        title = group.before
        if group.before != group.after:
            title = f"{group.before or 'no group'} -> {group.after or 'no group'}"
        yield from row(title, width=width, indent=_INDENT)
        if group.before and group.after:
            for change in group.figures:
                yield from _figure(change, width, 4)


def _figure(change: FigureChange, width: int, indent: int) -> Iterator[Line]:
    text = f"{_told(change.before, change.unit)} -> {_told(change.after, change.unit)}"
    if change.before and change.after:
        text += f"  ({_ratio(change.after / change.before)})"
    yield from row(
        text,
        width=width,
        label=change.subject,
        label_width=_LABELS + 2 - indent,
        indent=(Piece(" " * indent),),
    )


def _told(value: float | None, unit: Unit) -> str:
    if value is None:
        return "none"
    match unit:
        case Unit.BYTES:
            return format_bytes(value)
        case Unit.SECONDS:
            return format_seconds(value)
        case Unit.FLOPS:
            return flops(value)
        case Unit.SHARE:
            return share(value)
        case Unit.DOLLARS:
            return f"${value:,.4g}"
        case Unit.RATE:
            return f"{value:,.0f}/s"


def _ratio(value: float) -> str:
    """A change as people say it.

    >>> _ratio(1.25), _ratio(0.5), _ratio(3.2)
    ('+25 %', '-50 %', '3.2 times')
    """
    return f"{value:.1f} times" if value >= 2 else f"{100 * (value - 1):+.3g} %"


def _places(before: str, after: str) -> str:
    places = dict.fromkeys(place for place in (before, after) if place and place != "default")
    return " -> ".join(places)
