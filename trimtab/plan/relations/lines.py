"""Where decisions were written: the text of a line, and the statements of a program by their place."""

from collections.abc import Iterable, Mapping

from trimtab.spec import Program
from trimtab.terms import Span

DEFAULT = "default"
"""Stands for a line where no statement decided."""


def line_of(span: Span | None) -> str:
    """``job.yaml:9``, or ``default``."""
    return f"{span.source}:{span.line}" if span else DEFAULT


def lines_of(spans: Iterable[Span | None]) -> str | None:
    """Each line once, in order: ``job.yaml:9, job.yaml:12``; None if there is no decision at all."""
    return ", ".join(dict.fromkeys(line_of(span) for span in spans)) or None


def statement_numbers(program: Program) -> Mapping[Span | None, int]:
    """The number of each statement, from 1, by its place."""
    return {statement.span: number for number, statement in enumerate(program.statements, start=1)}
