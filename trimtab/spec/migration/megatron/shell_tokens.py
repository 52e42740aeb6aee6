"""A shell script cut into words and marks, the way bash does it.

Only what assigns, tests and starts is read further; nothing is ever run.
"""

import bisect
import re
from dataclasses import dataclass
from enum import Enum, auto

from trimtab.spec.migration.settings import MigrationError


class PieceKind(Enum):
    """What a part of a word is."""

    TEXT = auto()  # stands for itself
    VARIABLE = auto()  # $NAME, ${NAME:-default}: the text is what stands inside the braces
    ARITHMETIC = auto()  # $((…)): the text is the expression
    COMMAND = auto()  # $(…) or `…`: the text is the command


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of a word; a quoted one is not split at blanks."""

    kind: PieceKind
    text: str
    is_quoted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """What stands between blanks."""

    pieces: tuple[Piece, ...]
    line: int

    @property
    def plain(self) -> str | None:
        """The text of a word without quotes and variables; None for any other word."""
        if all(piece.kind is PieceKind.TEXT and not piece.is_quoted for piece in self.pieces):
            return "".join(piece.text for piece in self.pieces)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """``;``, ``&&``, a line end, a parenthesis; `is_glued`: no blank before it."""

    text: str
    line: int
    is_glued: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """The lines of a here-document, given to the command before it."""

    text: str
    line: int


Token = Word | Mark | Document


def tokenize(text: str) -> list[Token]:
    """The words and marks of a script.

    Raises: MigrationError for a quote or bracket that is never closed, with its line.
    """
    return _Scanner(text.replace("\r\n", "\n")).scan()


_SKIPPED = re.compile(r"(?:[ \t\r]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_MARK = re.compile(r";;|&&|\|\||[;|&()\n]")
_REDIRECTION = re.compile(r"(?:[0-9]|&)?(?:<<<|<<-?|>>|>\||[<>])(?:&[0-9-])?")
_PLAIN = re.compile(r"""[^\s\\'"$`;|&()<>]+""")
_IN_QUOTES = re.compile(r'[^"\\$`]+')
_NAMED = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!])")
_BRACKETS = {"(": ")", "{": "}"}


class _Scanner:
    """Walks over the text once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._tokens: list[Token] = []
        self._pieces: list[Piece] = []
        self._word_at = 0
        self._heredocs: list[tuple[str, bool]] = []
        self._line_ends = [match.start() for match in re.finditer("\n", text)]

    def scan(self) -> list[Token]:
        while self._at < len(self._text):
            self._step()
        self._end_word()
        return self._tokens

    def _step(self) -> None:
        if match := _SKIPPED.match(self._text, self._at):
            # A line that ends in a backslash goes on inside the word; blanks end it.
            if match[0].strip("\\\n"):
                self._end_word()
            self._at = match.end()
        elif not self._pieces and (match := _COMMENT.match(self._text, self._at)):
            self._at = match.end()
        elif not self._pieces and self._text.startswith("((", self._at):
            self._arithmetic_command()
        elif match := self._redirection():
            self._skip_target(match[0], match.end())
        elif match := _MARK.match(self._text, self._at):
            self._mark(match[0])
        else:
            self._piece()

    def _piece(self) -> None:
        text, at = self._text, self._at
        if match := _PLAIN.match(text, at):
            self._add(PieceKind.TEXT, match[0], is_quoted=False, end=match.end())
        elif text[at] == "'":
            end = self._closing("'", at)
            self._add(PieceKind.TEXT, text[at + 1 : end], is_quoted=True, end=end + 1)
        elif text[at] == '"':
            self._double_quoted()
        elif text[at] == "\\":
            self._add(PieceKind.TEXT, text[at + 1 : at + 2], is_quoted=True, end=at + 2)
        else:
            self._expansion(is_quoted=False)

    def _double_quoted(self) -> None:
        opened = self._at
        self._add(PieceKind.TEXT, "", is_quoted=True, end=self._at + 1)
        while self._at < len(self._text):
            text, at = self._text, self._at
            if match := _IN_QUOTES.match(text, at):
                self._add(PieceKind.TEXT, match[0], is_quoted=True, end=match.end())
            elif text[at] == '"':
                self._at += 1
                return
            elif text[at] == "\\":
                escaped = text[at + 1 : at + 2]
                said = {"\n": "", '"': '"', "$": "$", "`": "`", "\\": "\\"}.get(escaped, f"\\{escaped}")
                self._add(PieceKind.TEXT, said, is_quoted=True, end=at + 2)
            else:
                self._expansion(is_quoted=True)
        raise self._error(opened, "the quote '\"' is never closed")

    def _expansion(self, *, is_quoted: bool) -> None:
        text, at = self._text, self._at
        if text[at] == "`":
            end = self._closing("`", at)
            self._add(PieceKind.COMMAND, text[at + 1 : end], is_quoted=is_quoted, end=end + 1)
        elif text.startswith("$((", at):
            end = self._balanced(at + 1)
            self._add(PieceKind.ARITHMETIC, text[at + 3 : end - 2], is_quoted=is_quoted, end=end)
        elif text.startswith(("$(", "${"), at):
            end = self._balanced(at + 1)
            kind = PieceKind.COMMAND if text[at + 1] == "(" else PieceKind.VARIABLE
            self._add(kind, text[at + 2 : end - 1], is_quoted=is_quoted, end=end)
        elif match := _NAMED.match(text, at):
            self._add(PieceKind.VARIABLE, match[1], is_quoted=is_quoted, end=match.end())
        else:
            self._add(PieceKind.TEXT, "$", is_quoted=is_quoted, end=at + 1)

    def _balanced(self, at: int) -> int:
        """Behind the bracket that closes the one at a place; brackets inside quotes do not count."""
        opening, closing = self._text[at], _BRACKETS[self._text[at]]
        depth, quote, place = 0, "", at
        while place < len(self._text):
            character = self._text[place]
            if character == "\\":
                place += 1
            elif quote:
                quote = "" if character == quote else quote
            elif character in "'\"":
                quote = character
            elif character == opening:
                depth += 1
            elif character == closing:
                depth -= 1
                if depth == 0:
                    return place + 1
            place += 1
        raise self._error(at, f"the bracket {opening!r} is never closed")

    def _arithmetic_command(self) -> None:
        end = self._balanced(self._at)
        self._add(PieceKind.ARITHMETIC, self._text[self._at + 2 : end - 2], is_quoted=False, end=end)
        self._end_word()

    def _mark(self, mark: str) -> None:
        is_glued = bool(self._pieces)
        self._end_word()
        self._tokens.append(Mark(text=mark, line=self._line(self._at), is_glued=is_glued))
        self._at += len(mark)
        if mark == "\n":
            self._read_heredocs()

    def _redirection(self) -> re.Match[str] | None:
        """An operator such as ``>>`` or ``2>&1``; a digit that ends a word is not part of one."""
        match = _REDIRECTION.match(self._text, self._at)
        return None if match and self._pieces and match[0][0] not in "<>" else match

    def _skip_target(self, operator: str, end: int) -> None:
        """Skip the file that an operator names; remember where a here-document ends."""
        self._end_word()
        self._at = end
        if "&" in operator[1:]:
            return
        if match := _SKIPPED.match(self._text, self._at):
            self._at = match.end()
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in " \t\n;|&()<>":
            self._piece()
        self._pieces = []
        if operator in ("<<", "<<-"):
            delimiter = self._text[start : self._at].strip("'\"\\")
            self._heredocs.append((delimiter, operator == "<<-"))

    def _read_heredocs(self) -> None:
        for delimiter, is_indented in self._heredocs:
            indent = r"\t*" if is_indented else ""
            last = re.compile(rf"^{indent}{re.escape(delimiter)}$", re.MULTILINE)
            match = last.search(self._text, self._at)
            if match is None:
                raise self._error(self._at, f"the here-document up to {delimiter!r} never ends")
            body = self._text[self._at : match.start()]
            self._tokens.append(Document(text=body, line=self._line(self._at)))
            self._at = match.end()
        self._heredocs = []

    def _add(self, kind: PieceKind, text: str, *, is_quoted: bool, end: int) -> None:
        if not self._pieces:
            self._word_at = self._at
        self._pieces.append(Piece(kind=kind, text=text, is_quoted=is_quoted))
        self._at = end

    def _end_word(self) -> None:
        if self._pieces:
            self._tokens.append(Word(pieces=tuple(self._pieces), line=self._line(self._word_at)))
            self._pieces = []

    def _closing(self, quote: str, at: int) -> int:
        end = self._text.find(quote, at + 1)
        if end < 0:
            raise self._error(at, f"the quote {quote!r} is never closed")
        return end

    def _error(self, at: int, message: str) -> MigrationError:
        return MigrationError(f"line {self._line(at)}: {message}")

    def _line(self, at: int) -> int:
        return bisect.bisect_left(self._line_ends, at) + 1
