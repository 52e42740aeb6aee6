"""What the parts of a statement have become while it is read, and how larger ones are made of them."""

from typing import Any, NamedTuple, Never

from trimtab.spec.errors import Place, Problem
from trimtab.spec.language.syntax import And, Expression, Literal, Name, Or
from trimtab.spec.language.tokens import Places, Token
from trimtab.spec.language.vocabulary import CHANGES
from trimtab.terms import Span

MAX_DEPTH = 50
"""Operators inside one another in an expression; parentheses that change nothing do not count."""

LONG_FORMS = {"BALANCE": "BALANCE BY", "IF": "IF ANY"}
"""Clauses of two words, by their first."""


class RefusedStatementError(Exception):
    """A statement that can be read as words and means nothing; never leaves the parser."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Piece(NamedTuple):
    """What a rule has become: an element of the tree, a tuple of them, or a clause; as many as tokens.

    Args:
        value: The element.
        start: Where its text begins.
        end: Where its text ends.
        places: Finds its span.
        depth: Operators inside one another.
    """

    value: Any
    start: int
    end: int
    places: Places
    depth: int = 0

    @property
    def span(self) -> Span:
        """Where it stands."""
        return self.places.span(self.start, self.end)


class Clause(NamedTuple):
    """``OVER dp``: its first word, and the fields of the statement that it fills."""

    word: str
    fields: dict[str, Any]


Parts = list[Any]
"""Tokens, pieces, or None for what was left out: which one stands where, the grammar says."""


def joined(value: Any, parts: Parts, *, depth: int = 0) -> Piece:
    """A value that reaches from the first part to the last."""
    first, last = parts[0], parts[-1]
    return Piece(value, first.start, last.end, first.places, depth)


def element_piece(element: type, parts: Parts, *, depth: int = 0, **fields: Any) -> Piece:
    """An element that reaches from the first part to the last."""
    first, last = parts[0], parts[-1]
    span = first.places.span(first.start, last.end)
    return Piece(element(**fields, span=span), first.start, last.end, first.places, depth)


def operator_piece(element: type, parts: Parts, **fields: Any) -> Piece:
    """An operator of an expression, one level above its deepest operand.

    Raises: RefusedStatementError if it would be too deep for those who walk the tree.
    """
    depth = 1 + max(part.depth for part in parts if part)
    if depth > MAX_DEPTH:
        refuse(
            joined(None, parts),
            f"the condition has operators {depth} deep inside one another; at most {MAX_DEPTH} can be read",
            hint="IN (...) and BETWEEN say the same as many comparisons.",
        )
    return element_piece(element, parts, depth=depth, **fields)


def chain_piece(element: type[And] | type[Or], parts: Parts) -> Piece:
    """Operands of one operator; a group of the same operator is taken apart, for it says the same."""
    operands: list[Expression] = []
    for part in parts[::2]:
        operands += part.value.operands if isinstance(part.value, element) else (part.value,)
    return operator_piece(element, parts, operands=tuple(operands))


def clause_piece(parts: Parts, **fields: Any) -> Piece:
    """A clause, named by its first token."""
    return joined(Clause(parts[0].type, fields), parts)


def statement_piece(
    element: type, parts: Parts, *, renamed: dict[str, str] | None = None, **fields: Any
) -> Piece:
    """A statement whose clauses may stand in any order, each once.

    Args:
        element: The class of the statement.
        parts: The verb, what it speaks of, and the clauses.
        renamed: Fields that a clause fills under another name in this statement.
        fields: Those that do not come from clauses.

    Raises: RefusedStatementError if a clause stands twice or is missing.
    """
    verb, _, *clauses = parts
    given: dict[str, Piece] = {}
    for piece in clauses:
        for field, value in piece.value.fields.items():
            if field in given:
                _refuse_second(piece, given[field])
            given[field] = piece
            fields[(renamed or {}).get(field, field)] = value
    words = {piece.value.word for piece in clauses}
    missing = [word for word in CHANGES[verb.type].required if word not in words]
    if missing:
        end = Piece(None, parts[-1].end - 1, parts[-1].end, verb.places)
        refuse(end, f"the statement ends here; {verb.type} needs {' and '.join(missing)}")
    return element_piece(element, parts, **fields)


def _refuse_second(clause: Piece, first: Piece) -> Never:
    word, earlier = (LONG_FORMS.get(piece.value.word, piece.value.word) for piece in (clause, first))
    others = (Place(span=first.span, note=f"{earlier} stands here already"),)
    hint = "Keep one of the two."
    if word != earlier:
        hint = "BETWEEN is short for WHERE layer BETWEEN.  Put both conditions after WHERE, with AND."
    raise RefusedStatementError(
        Problem(span=clause.span, message=f"a second {word}", others=others, hint=hint)
    )


def name_of(token: Token) -> Name:
    """The word as a name."""
    return Name(text=token.text, span=token.span)


def literal_of(token: Token) -> Literal:
    """The token's value."""
    return Literal(value=token.value, span=token.span)


def whole_number(token: Token) -> int:
    """The token's value.

    Raises: RefusedStatementError if it is not a whole number.
    """
    if not isinstance(token.value, int):
        refuse(token, f"found {token.text!r}; expected a whole number")
    return token.value


def refuse(part: Token | Piece, message: str, hint: str = "") -> Never:
    """End the statement with a problem at one of its parts."""
    raise RefusedStatementError(Problem(span=part.span, message=message, hint=hint))
