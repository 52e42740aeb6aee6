"""Text of the strategy language into a syntax tree with spans, and every error in it at once."""

import difflib
import functools
import re
from typing import TYPE_CHECKING, Any, cast

from trimtab.spec.errors import Problem, StrategyError
from trimtab.spec.language.syntax import (
    AxisSize,
    Call,
    MeshStatement,
    Name,
    Program,
    ReduceStatement,
    SplitStatement,
    Statement,
)
from trimtab.spec.language.vocabulary import LATER_CLAUSES, LATER_VERBS, VERBS
from trimtab.spec.located_text import LocatedText

if TYPE_CHECKING:
    from lark import Lark, Token, Tree
    from lark.exceptions import UnexpectedInput

GRAMMAR = r"""
start: mesh | split | reduce
mesh: MESH axis ("," axis)*
axis: NAME (NUMBER | STAR)
split: SPLIT names OVER NAME
reduce: REDUCE NAME OVER names [USING NAME]
names: NAME ("," NAME)*

MESH: /mesh\b/i
SPLIT: /split\b/i
REDUCE: /reduce\b/i
OVER: /over\b/i
USING: /using\b/i
STAR: "*"
NUMBER: /[0-9]+\b/
NAME: /[a-z_][a-z0-9_]*/i
%ignore /\s+/
"""
"""One statement. Keywords carry \b so that OVERALL is a name and not OVER followed by ALL."""


def parse_strategy(text: str, *, source: str) -> Program:
    """The program that a text states; `source` names the text in errors.

    Raises: StrategyError with every statement that cannot be read.
    """
    return parse_located(LocatedText.whole(text, source=source))


def parse_located(text: LocatedText) -> Program:
    """As `parse_strategy`, for a text that stands inside another document.

    Raises: StrategyError with every statement that cannot be read.
    """
    statements, problems = [], []
    for start, end in _statements(text.text):
        parsed = _StatementParser(text, start, end).parse()
        if isinstance(parsed, Problem):
            problems.append(parsed)
        else:
            statements.append(parsed)
    documents = {text.source: text.document}
    if problems:
        raise StrategyError(problems, documents)
    return Program(statements=tuple(statements), documents=documents)


_PIECE = re.compile(r"--[^\n]*|'[^'\n]*'|[;\n]")


def _statements(text: str) -> list[tuple[int, int]]:
    """Begin and end of each statement: line ends and semicolons divide, except in quotes and comments."""
    pieces, start = [], 0
    for match in [*_PIECE.finditer(text), None]:
        if match is not None and match[0].startswith("'"):
            continue
        pieces.append((start, match.start() if match else len(text)))
        start = match.end() if match else len(text)
    return [(begin, end) for begin, end in pieces if text[begin:end].strip()]


class _StatementParser:
    """Reads one statement, `text.text[start:end]`."""

    def __init__(self, text: LocatedText, start: int, end: int) -> None:
        self._text = text
        line = text.text[start:end]
        self._line = line.strip()
        self._start = start + len(line) - len(line.lstrip())

    def parse(self) -> Statement | Problem:
        # Loaded on first use: a job file without formulas does not pay for lark.
        from lark.exceptions import UnexpectedInput

        if (problem := self._refused_verb()) is not None:
            return problem
        try:
            (tree,) = _children(_grammar().parse(self._line))
        except UnexpectedInput as error:
            return self._unexpected(error)
        return self._statement(tree)

    def _refused_verb(self) -> Problem | None:
        verb = self._verb()
        if verb in VERBS:
            return None
        if verb in LATER_VERBS:
            return self._problem(0, len(verb), f"{verb} is not in this release", _KNOWN_VERBS)
        close = difflib.get_close_matches(verb, (*VERBS, *LATER_VERBS), n=1)
        hint = f"{_KNOWN_VERBS}  Did you mean {close[0]}?" if close else _KNOWN_VERBS
        return self._problem(0, len(verb), f"unknown statement {self._line[: len(verb)]!r}", hint)

    def _unexpected(self, error: "UnexpectedInput") -> Problem:
        expected = _expected(error)
        token = getattr(error, "token", None)
        if token is not None and token.type == "$END":
            end = len(self._line)
            return self._problem(end - 1, end, f"the statement ends here; expected {expected}")
        start = cast(int, error.pos_in_stream)
        match = _WORD.match(self._line, start)
        assert match is not None, "lark skips blanks"
        word = match[0]
        if word.upper() in LATER_CLAUSES or word == "(":
            clause = "a setting in parentheses" if word == "(" else word.upper()
            message = f"{clause} is not in this release, in the statement {self._verb()}"
            return self._problem(*match.span(), message, f"Here this release takes {expected}.")
        return self._problem(*match.span(), f"found {word!r}; expected {expected}")

    def _statement(self, tree: "Tree[Token]") -> Statement:
        span = self._text.span(self._start, self._start + len(self._line))
        match str(tree.data):
            case "mesh":
                _, *axes = _children(tree)
                return MeshStatement(axes=tuple(self._axis(axis) for axis in axes), span=span)
            case "split":
                _, dims, _, axis = _children(tree)
                return SplitStatement(dims=self._names(dims), axes=(self._name(axis),), span=span)
            case _:
                _, table, _, axes, _, route = _children(tree)
                return ReduceStatement(
                    table=self._name(table),
                    axes=self._names(axes),
                    using=self._call(route) if route is not None else None,
                    span=span,
                )

    def _axis(self, tree: "Tree[Token]") -> AxisSize:
        name, size = _children(tree)
        start, end = _begin(name), _begin(size) + len(size)
        return AxisSize(
            axis=self._name(name),
            size=int(size) if size != "*" else None,
            span=self._text.span(self._start + start, self._start + end),
        )

    def _names(self, tree: "Tree[Token]") -> tuple[Name, ...]:
        return tuple(self._name(token) for token in _children(tree))

    def _call(self, token: "Token") -> Call:
        name = self._name(token)
        return Call(name=name, span=name.span)

    def _name(self, token: "Token") -> Name:
        start = self._start + _begin(token)
        return Name(text=str(token), span=self._text.span(start, start + len(token)))

    def _verb(self) -> str:
        match = _WORD.match(self._line)
        assert match is not None, "blank statements are left out"
        return match[0].upper()

    def _problem(self, start: int, end: int, message: str, hint: str = "") -> Problem:
        span = self._text.span(self._start + start, self._start + end)
        return Problem(span=span, message=message, hint=hint)


_WORD = re.compile(r"\w+|\S")
_KNOWN_VERBS = f"Statements of this release: {', '.join(VERBS)}."


@functools.cache
def _grammar() -> "Lark":
    from lark import Lark

    return Lark(GRAMMAR, parser="lalr", maybe_placeholders=True)


def _expected(error: "UnexpectedInput") -> str:
    accepted = getattr(error, "accepts", None) or getattr(error, "allowed", None) or ()
    words = sorted(_TERMINALS.get(str(name), str(name)) for name in accepted)
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


_TERMINALS = {
    "NAME": "a name",
    "NUMBER": "a number",
    "STAR": "'*'",
    "COMMA": "','",
    "$END": "the end of the statement",
    "<END-OF-FILE>": "the end of the statement",
}


def _children(tree: "Tree[Token]") -> list[Any]:
    """Tokens, subtrees, or None for what was left out: which one stands where, the grammar says."""
    return cast(list[Any], tree.children)


def _begin(token: "Token") -> int:
    assert token.start_pos is not None, "the lexer places every token"
    return token.start_pos
