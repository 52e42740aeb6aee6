"""Whether a condition makes sense before any row is seen: its columns exist, its values can be compared."""

from collections.abc import Iterator, Mapping

from trimtab.spec.errors import Problem
from trimtab.spec.language.syntax import (
    And,
    Arithmetic,
    Between,
    Column,
    Comparison,
    Expression,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
)
from trimtab.spec.language.vocabulary import ColumnType
from trimtab.spec.language.wording import did_you_mean


def check_condition(
    expression: Expression, columns: Mapping[str, ColumnType], *, what: str
) -> Iterator[Problem]:
    """What is wrong with a condition: unknown columns, text where numbers are compared, and the reverse.

    Args:
        expression: The condition.
        columns: The columns that rows have.
        what: Whose columns they are, for errors: ``columns of params``.
    """
    match expression:
        case And(operands=operands) | Or(operands=operands):
            for operand in operands:
                yield from check_condition(operand, columns, what=what)
        case Not(operand=operand):
            yield from check_condition(operand, columns, what=what)
        case _:
            yield from _Check(columns, what).condition(expression)


class _Check:
    """Finds the type of each operand, and what is wrong on the way."""

    def __init__(self, columns: Mapping[str, ColumnType], what: str) -> None:
        self._columns = columns
        self._what = what

    def condition(self, expression: Expression) -> Iterator[Problem]:
        match expression:
            case Comparison(left=left, right=right):
                yield from self._equal_types(left, right)
            case Between(operand=operand, low=low, high=high):
                yield from self._equal_types(operand, low, high)
            case InList(operand=operand, items=items):
                yield from self._equal_types(operand, *items)
            case Like(operand=operand, pattern=pattern):
                yield from self._must_be(ColumnType.TEXT, operand, reason="LIKE compares text")
                yield from self._must_be(ColumnType.TEXT, pattern, reason="LIKE compares text")
            case IsNull(operand=operand):
                yield from self._type_of(operand)[1]
            case _:
                message = "a condition is needed here, such as layer < 4"
                yield Problem(span=expression.span, message=message)

    def _equal_types(self, first: Expression, *others: Expression) -> Iterator[Problem]:
        """Problems inside the operands, and of the first that has not the type of the first operand."""
        wanted, problems = self._type_of(first)
        yield from problems
        for other in others:
            found, problems = self._type_of(other)
            yield from problems
            if wanted is not None and found is not None and found is not wanted:
                message = (
                    f"{_text(other)} is {found}, and {_text(first)} is {wanted}: they cannot be compared"
                )
                yield Problem(span=other.span, message=message)
                return
            wanted = wanted or found

    def _must_be(self, wanted: ColumnType, operand: Expression, *, reason: str) -> Iterator[Problem]:
        found, problems = self._type_of(operand)
        yield from problems
        if found is not None and found is not wanted:
            yield Problem(span=operand.span, message=f"{reason}, and {_text(operand)} is {found}")

    def _type_of(self, operand: Expression) -> tuple[ColumnType | None, list[Problem]]:
        """The type of a value, None if it cannot be told; and what is wrong in it."""
        match operand:
            case Literal(value=value):
                return ColumnType.TEXT if isinstance(value, str) else ColumnType.NUMBER, []
            case Column(name=name):
                found = self._columns.get(name.text)
                return found, [] if found else [self._unknown_column(operand)]
            case Arithmetic(operator=sign, left=left, right=right):
                reason = f"{sign} works on numbers"
                problems = [
                    *self._must_be(ColumnType.NUMBER, left, reason=reason),
                    *self._must_be(ColumnType.NUMBER, right, reason=reason),
                ]
                return ColumnType.NUMBER, problems
            case _:
                message = "a value is needed here, and this is a condition"
                return None, [Problem(span=operand.span, message=message)]

    def _unknown_column(self, column: Column) -> Problem:
        name = column.name.text
        hint = f"{self._what}: {', '.join(self._columns)}.{did_you_mean(name, list(self._columns))}"
        return Problem(span=column.span, message=f"unknown column {name!r}", hint=hint)


def _text(operand: Expression) -> str:
    match operand:
        case Literal(value=value):
            return repr(value)
        case Column(name=name):
            return name.text
        case _:
            return "this value"
