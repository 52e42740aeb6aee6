"""Where a piece of text stands: a place that an error can point at."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A stretch of one line of a named source.

    Args:
        source: The name shown to the user: a file's path, or an origin such as ``--set #1``.
        line: Counted from 1.
        column: Counted from 1, in characters.
        length: Characters covered, at least 1.
    """

    source: str
    line: int
    column: int
    length: int = 1

    def __str__(self) -> str:
        """``source:line:column``, the form that editors open."""
        return f"{self.source}:{self.line}:{self.column}"


def caret_under(span: Span, text: str) -> str:
    """The line of ``text`` that the span stands on, with carets under it, indented by four.

    ``text`` is the whole source. A span past the end of the text gives an empty line.
    """
    lines = text.splitlines()
    line = lines[span.line - 1] if 0 < span.line <= len(lines) else ""
    shown = line.replace("\t", " ")
    carets = " " * (span.column - 1) + "^" * max(1, min(span.length, max(1, len(line) - span.column + 1)))
    return f"    {shown}\n    {carets}"
