"""The variables of a shell script, and what words become with them."""

import re
from dataclasses import dataclass, field

from trimtab.spec.migration.megatron.shell_arithmetic import evaluate
from trimtab.spec.migration.megatron.shell_tokens import Piece, PieceKind, Word, tokenize
from trimtab.spec.migration.settings import MigrationError

MAX_CHARACTERS = 1_000_000
"""Longest value that is kept: variables that double themselves end here, no command line is near it."""


@dataclass(slots=True)
class Variables:
    """What a script has assigned so far: each variable with its elements, one for a plain variable.

    What is not assigned stays as it is written, ``$NAME``: nobody's environment is looked at.
    """

    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)

    def assign(self, name: str, elements: tuple[str, ...], *, is_added: bool) -> None:
        """Set a variable, or add elements to it (``+=``)."""
        old = self.values.get(name, ())
        if is_added and len(old) == len(elements) == 1:
            elements = (old[0] + elements[0],)
        elif is_added:
            elements = (*old, *elements)
        if sum(map(len, elements)) > MAX_CHARACTERS:
            raise MigrationError(f"the variable {name} grows beyond {MAX_CHARACTERS} characters")
        self.values[name] = elements

    def fields(self, word: Word) -> list[str]:
        """The words that a word becomes: variables filled in, unquoted values split at blanks."""
        fields: list[str] = [""]
        is_word = False
        for piece in word.pieces:
            elements = self._elements(piece)
            if not elements:
                continue
            is_word = True
            fields[-1] += elements[0]
            fields += elements[1:]
        if sum(map(len, fields)) > MAX_CHARACTERS:
            raise MigrationError(f"line {word.line}: a word grows beyond {MAX_CHARACTERS} characters")
        return fields if is_word else []

    def text(self, word: Word) -> str:
        """The word as one text, as an assignment takes it: nothing is split."""
        return " ".join(self.fields(_quoted(word)))

    def known(self, word: Word) -> str | None:
        """The word as a test sees it: an unassigned variable is empty; None where an argument or a command's
        output decides.
        """
        found = []
        for piece in word.pieces:
            value = self._value(piece)
            if value is None and not _is_name(piece):
                return None
            found.append("" if value is None else " ".join(value))
        text = "".join(found)
        return None if "$" in text else text

    def _elements(self, piece: Piece) -> list[str]:
        """The words that a piece becomes; none if it is an unquoted variable without a value, or no array's."""
        value = self._value(piece)
        if value is None:
            return [_as_written(piece)]
        if piece.is_quoted or piece.kind is PieceKind.TEXT:
            return list(value)
        return [part for element in value for part in _split(element)]

    def _value(self, piece: Piece) -> tuple[str, ...] | None:
        """The elements that a piece stands for; None if that is open."""
        if piece.kind is PieceKind.TEXT:
            return (piece.text,)
        if piece.kind is PieceKind.VARIABLE:
            return self._variable(piece.text)
        if piece.kind is PieceKind.ARITHMETIC:
            result = evaluate(piece.text, self.values)
            return None if result is None else (str(result),)
        return (".",) if piece.text.strip() == "pwd" else None

    def _variable(self, inside: str) -> tuple[str, ...] | None:
        match = _BRACES.fullmatch(inside)
        if match is None:
            return None
        name, sign, other = match["name"], match["sign"] or "", match["other"] or ""
        value = self.values.get(name)
        is_empty = value is None or (sign.startswith(":") and not any(value))
        if sign in (":+", "+"):
            return ("",) if is_empty else (self._default(other),)
        if sign and is_empty:
            return (self._default(other),) if "?" not in sign else None
        return value

    def _default(self, text: str) -> str:
        words = [token for token in tokenize(text) if isinstance(token, Word)]
        return " ".join(self.text(word) for word in words)


_BRACES = re.compile(r"(?P<name>\w+)(?:\[[@*]\])?(?:(?P<sign>:?[-=?+])(?P<other>.*))?", re.DOTALL)


def _quoted(word: Word) -> Word:
    pieces = tuple(Piece(kind=piece.kind, text=piece.text, is_quoted=True) for piece in word.pieces)
    return Word(pieces=pieces, line=word.line)


def _split(element: str) -> list[str]:
    """At blanks; quotes that came out of a variable keep what they hold together, as ``eval`` would have it."""
    return [_PAIRS.sub(lambda pair: pair[0][1:-1], part) for part in _PARTS.findall(element)]


_PARTS = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s])+""")
_PAIRS = re.compile(r"""'[^']*'|"[^"]*["]""")


def _is_name(piece: Piece) -> bool:
    """Whether a piece is a variable that a script may leave unset, and not one of its arguments."""
    return piece.kind is PieceKind.VARIABLE and re.match(r"[A-Za-z_]", piece.text) is not None


def _as_written(piece: Piece) -> str:
    if piece.kind is PieceKind.VARIABLE:
        return f"${piece.text}" if piece.text.isidentifier() else f"${{{piece.text}}}"
    return f"$(({piece.text}))" if piece.kind is PieceKind.ARITHMETIC else f"$({piece.text})"
