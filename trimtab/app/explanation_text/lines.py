"""Lines of a text for people: pieces with a style each, wrapped to the width that there is."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

MIN_WIDTH = 60
"""Narrower terminals are written for as if they had this many columns."""


class Style(Enum):
    """How a piece looks where colours are shown; the values are rich's."""

    PLAIN = ""
    HEADING = "bold"
    LABEL = "cyan"
    FAINT = "dim"
    WARNING = "yellow"
    BAD = "bold red"
    GOOD = "green"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a line."""

    text: str
    style: Style = Style.PLAIN


Line = tuple[Piece, ...]
"""One line without its end."""


def plain(lines: Iterable[Line]) -> str:
    """The lines without their styles."""
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)


def heading(text: str) -> Line:
    """A line that begins a section."""
    return (Piece(text, Style.HEADING),)


def row(
    text: str,
    *,
    width: int,
    label: str = "",
    label_width: int = 0,
    place: str = "",
    indent: Sequence[Piece] = (),
    further_indent: Sequence[Piece] | None = None,
    style: Style = Style.PLAIN,
) -> Iterator[Line]:
    """A label, a text that is wrapped beside it, and at the right end the place that decided it.

    Args:
        text: What to say.
        width: Of the terminal.
        label: Before the text, in a column of ``label_width``.
        label_width: Columns of the label.
        place: ``file:line``; beside the last line of the text if it has room there, else below.
        indent: Before the first line.
        further_indent: Before the others; the same if None.
        style: Of the text.
    """
    start = sum(len(piece.text) for piece in indent) + label_width
    room = max(width - start, _LEAST_ROOM)
    reserved = len(place) + 2 if place else 0
    wrapped = _wrapped(text, room)
    if place and len(wrapped[-1]) + reserved > room:
        # A text that would only just not leave room for the place is wrapped a little earlier.
        narrower = _wrapped(text, max(room - reserved, _LEAST_ROOM))
        if len(narrower) <= len(wrapped) + 1 and len(narrower[-1]) + reserved <= room:
            wrapped = narrower
    for number, part in enumerate(wrapped):
        before = tuple(indent if number == 0 or further_indent is None else further_indent)
        name = Piece((label if number == 0 else "").ljust(label_width), Style.LABEL)
        body = Piece(part, style)
        if place and number == len(wrapped) - 1 and len(part) + reserved <= room:
            gap = room - len(part) - len(place)
            yield (*before, name, body, Piece(" " * gap + place, Style.FAINT))
            return
        yield (*before, name, body)
    before = tuple(indent if further_indent is None else further_indent)
    for part in _wrapped(place, label_width + room) if place else ():
        yield (*before, Piece(part.rjust(label_width + room), Style.FAINT))


_LEAST_ROOM = 20
"""Columns that a text has at least, however deep it stands."""

_QUANTITY = re.compile(r"(?<=\d) (?=(?:[kMGTPE]?B|[num]?s|min|h|%|[MGTPE]FLOPs)\b|%)")
"""The space between a number and its unit, where no line may end."""

_TIED = "\N{WORD JOINER}"
"""Stands for such a space; no blank, so that no line is cut there."""


def _wrapped(text: str, room: int) -> list[str]:
    """The text in lines of at most ``room`` columns; a word that is longer is cut."""
    if len(text) <= room:
        return [text]
    found: list[str] = []
    line = ""
    for word in _QUANTITY.sub(_TIED, text).split():
        if line and len(line) + 1 + len(word) <= room:
            line = f"{line} {word}"
            continue
        if line:
            found.append(line)
        while len(word) > room:
            found.append(word[:room])
            word = word[room:]
        line = word
    return [part.replace(_TIED, " ") for part in (*found, line) if part]
