"""Real steps beside predictions: a table for each rank group."""

from collections.abc import Iterator
from dataclasses import replace

from trimtab.app.explanation_text.lines import Line, Piece, Style, heading, row
from trimtab.app.explanation_text.quantities import share
from trimtab.cost.explanation.analysis import (
    Analysis,
    AnalyzedGroup,
    ComparedBytes,
    ComparedTime,
    MeasuredCollective,
)
from trimtab.plan.explanation import ranges
from trimtab.terms import format_seconds

_FIGURES = 13
"""Columns of a figure; three of them stand beside a label."""


def analysis_lines(found: Analysis, *, width: int) -> Iterator[Line]:
    """Everything that was measured."""
    yield heading(f"Measured on this machine, {found.steps} steps")
    step = found.step
    text = f"{format_seconds(step.measured_s)} ({format_seconds(found.fastest_s)} to {format_seconds(found.slowest_s)})"
    if step.predicted_s is None:
        text += f"; not predicted: {found.unknown}"
    else:
        text += f"; predicted {format_seconds(step.predicted_s)}"
    yield from row(text, width=width, label="step", label_width=12, indent=_INDENT)
    told = "; ".join(found.unplanned) or "as the plan says, collective by collective"
    yield from row(told, width=width, label="sent", label_width=12, indent=_INDENT)
    for group in found.groups:
        yield ()
        yield from _group(group, width)


def _group(group: AnalyzedGroup, width: int) -> Iterator[Line]:
    table = _Table(width)
    yield heading(f"{group.name}: ranks {ranges(group.ranks)}")
    yield table.row("bytes between steps", "measured", "predicted", "difference", Style.FAINT)
    yield from (table.bytes_row(item) for item in group.held if item.predicted or item.measured)
    for moment in group.moments:
        yield table.row(f"most in the {moment.moment.value}, bytes", "", "", "", Style.FAINT)
        shown = (item for item in (*moment.classes, moment.total) if item.predicted or item.measured)
        yield from (table.bytes_row(item) for item in shown)
    yield table.row("time of a step", "", "", "", Style.FAINT)
    yield from (table.time_row(item) for item in group.times)
    beside = group.beside
    if beside.measured_s or beside.predicted_s:
        yield table.time_row(replace(beside, name="beside the computation"))
    yield from row(
        f"{share(group.exposed_share)} of the step only sends or waits, {share(group.bubble_share)} is bubble, "
        f"{share(group.unattributed_share)} is not attributed",
        width=width,
        indent=_INDENT,
    )
    yield table.row("sent in a step, bytes", "measured", "predicted", "time in it", Style.FAINT)
    yield from (table.collective_row(item) for item in group.collectives)


_INDENT = (Piece("  "),)


class _Table:
    """Rows of a label and three figures, as wide as the terminal but no wider than they need."""

    def __init__(self, width: int) -> None:
        self._labels = min(width - len(_INDENT[0].text) - 3 * _FIGURES, _LONGEST_LABEL)

    def row(self, label: str, first: str, second: str, third: str, style: Style = Style.PLAIN) -> Line:
        """One of them; a label that is too long is cut."""
        figures = "".join(f"{figure:>{_FIGURES}}" for figure in (first, second, third))
        text = f"{label[: self._labels]:<{self._labels}}{figures}"
        return (*_INDENT, Piece(text.rstrip(), style))

    def bytes_row(self, item: ComparedBytes) -> Line:
        """Of one class."""
        difference = item.measured - item.predicted
        told = "exact"
        if difference:
            told = f"{difference / item.predicted:+.1%}" if item.predicted else "not predicted"
        return self.row(item.name, f"{item.measured:,}", f"{item.predicted:,}", told)

    def time_row(self, item: ComparedTime) -> Line:
        """Of one class."""
        measured = format_seconds(item.measured_s)
        if item.predicted_s is None:
            return self.row(item.name, measured, "-", "-")
        difference = item.measured_s - item.predicted_s
        sign = "-" if difference < 0 else "+"
        predicted = format_seconds(item.predicted_s)
        return self.row(item.name, measured, predicted, f"{sign}{format_seconds(abs(difference))}")

    def collective_row(self, item: MeasuredCollective) -> Line:
        """Of one collective."""
        more = f" and {item.num_tensors - 1} more" if item.num_tensors > 1 else ""
        name = f"{item.operation} over {', '.join(item.axes)}, {item.block}: {item.tensors[0]}{more}"
        took = "-" if item.measured_s is None else format_seconds(item.measured_s)
        return self.row(name, f"{item.sent_bytes.measured:,}", f"{item.sent_bytes.predicted:,}", took)


_LONGEST_LABEL = 56
"""Columns of a label."""
