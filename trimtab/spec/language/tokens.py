"""A text cut into statements, and each statement into tokens that know their places.

A statement ends at ``;`` and at the end of its line; inside parentheses it goes on on the next line.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from trimtab.spec.language.vocabulary import KEYWORDS, VERBS
from trimtab.spec.located_text import LocatedText
from trimtab.terms import Span, parse_bytes

MAX_CHARACTERS = 200_000
"""Length of a program: what nobody writes is refused before time is spent on it."""

MAX_LINE = 2_000
"""Characters of one line; inside parentheses a statement may go on on the next one."""

MAX_INTEGER = 2**63 - 1
"""As in SQL; what is larger is written as ``1e20``."""

PATTERNS = {
    "SIZE": r"(?i:[0-9]++(?:\.[0-9]++)?(?:[KMGT]i?)?B(?![A-Z0-9_.]))",
    "NUMBER": r"[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![A-Za-z0-9_.])",
    "DIGIT_NAME": r"[0-9][A-Za-z0-9_]*+(?![.])",
    "NAME": r"[A-Za-z_][A-Za-z0-9_]*+(?!\w)",
    "STRING": r"'(?:[^'\n]|'')*+'",
    "COMPARATOR": r"<=|>=|<>|!=|<|>",
}
"""Tokens that are more than one fixed text, tried in this order; a keyword is not a NAME."""

_SIGNS = {
    "=": "EQUAL", "+": "PLUS", "-": "MINUS", "*": "STAR", "/": "SLASH", "%": "PERCENT",
    "(": "LPAR", ")": "RPAR", ",": "COMMA",
}  # fmt: skip
"""Tokens of one character, by the names that lark gives them."""

_TOKEN = re.compile(
    r"(?P<BLANK>[^\S\n]++)|(?P<COMMENT>--[^\n]*)|(?P<END>[;\n])|"
    + "|".join(f"(?P<{name}>{pattern})" for name, pattern in PATTERNS.items())
    + r"|(?P<PARAMETER>\$[A-Za-z_][A-Za-z0-9_]*+)|(?P<EQUALITY>==)|(?P<SIGN>[=+*/%(),-])"
    r"|(?P<UNCLOSED>'[^\n]*)|(?P<OTHER>[\w.]+|.)"
)


class Places:
    """Finds the span of any stretch of a located text, at once however long the document."""

    __slots__ = ("_document_length", "_line_starts", "_offsets", "_source")

    def __init__(self, text: LocatedText) -> None:
        self._source = text.source
        self._offsets = text.offsets
        self._document_length = len(text.document)
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text.document))]

    def span(self, start: int, end: int) -> Span:
        """The place of ``text[start:end]``, which is not empty; what reaches over a line end is cut there."""
        first, last = self._offsets[start], self._offsets[end - 1]
        line = bisect_right(self._line_starts, first)
        line_start = self._line_starts[line - 1]
        following = self._line_starts[line] - 1 if line < len(self._line_starts) else self._document_length
        return Span(
            source=self._source,
            line=line,
            column=first - line_start + 1,
            length=max(1, min(last + 1, following) - first),
        )


class Token(NamedTuple):
    """A word, value or sign of a statement; a named tuple because there are many.

    ``type`` is a terminal of the grammar, or a reason why there is none: UNCLOSED, TOO_LARGE, PARAMETER,
    EQUALITY, OTHER.
    """

    type: str
    value: int | float | str
    text: str
    start: int
    end: int
    places: Places

    @property
    def depth(self) -> int:
        """Operators inside one another, which a token has none of."""
        return 0

    @property
    def span(self) -> Span:
        """Where it stands."""
        return self.places.span(self.start, self.end)


def cut_into_statements(
    text: LocatedText, parameters: Mapping[str, int | float | str]
) -> Iterator[list[Token]]:
    """The tokens of each statement that is not empty; ``$name`` becomes the parameter's value."""
    places = Places(text)
    statement: list[Token] = []
    depth, is_new_line = 0, False
    for match in _TOKEN.finditer(text.text):
        kind = match.lastgroup
        if kind in ("BLANK", "COMMENT"):
            continue
        if kind == "END" and match[0] == "\n" and depth:
            is_new_line = True
            continue
        token = None if kind == "END" else _token(match, places, parameters)
        # A verb at the beginning of a line is a new statement even if somebody forgot a parenthesis.
        if token is None or (is_new_line and token.type in VERBS):
            if statement:
                yield statement
            statement, depth = [], 0
        is_new_line = False
        if token is not None:
            statement.append(token)
            depth += (token.type == "LPAR") - (token.type == "RPAR" and depth > 0)
    if statement:
        yield statement


def _token(match: re.Match[str], places: Places, parameters: Mapping[str, int | float | str]) -> Token:
    kind, written = match.lastgroup, match[0]
    assert kind is not None, "every alternative is a named group"
    value: int | float | str = written
    match kind:
        case "NAME" if (keyword := written.upper()) in KEYWORDS:
            kind = keyword
        case "SIGN":
            kind = _SIGNS[written]
        case "STRING":
            value = written[1:-1].replace("''", "'")
        case "NUMBER" | "SIZE":
            number = _size(written) if kind == "SIZE" else _number(written)
            kind, value = ("TOO_LARGE", written) if number is None else (kind, number)
        case "PARAMETER" if written[1:] in parameters:
            value = parameters[written[1:]]
            kind = "STRING" if isinstance(value, str) else "NUMBER"
    return Token(kind, value, written, match.start(), match.end(), places)


def _number(written: str) -> int | float | None:
    """The number, or None if it is too large."""
    if written.isdecimal():
        return _in_range(int(written))
    number = float(written)
    return number if math.isfinite(number) else None


def _size(written: str) -> int | None:
    """The bytes, or None if there are too many; exact where the number is whole."""
    digits = written.rstrip("KMGTiBkmgtIb")
    if digits.isdecimal():
        return _in_range(int(digits) * parse_bytes(f"1{written[len(digits) :]}"))
    return _in_range(parse_bytes(written)) if float(digits) <= MAX_INTEGER else None


def _in_range(number: int) -> int | None:
    return number if number <= MAX_INTEGER else None
