"""Conditions over rows: checked against the columns that there are, then compiled into a fast test.

SQL's three-valued logic: a comparison with NULL is NULL, NOT NULL is NULL, AND is FALSE if any operand is,
OR is TRUE if any operand is; a row matches a condition only if it is TRUE. What has no value, such as a
division by zero, is NULL. ``/`` divides exactly, also whole numbers; ``%`` has the sign of its left operand.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, assert_never

from trimtab.spec.language.patterns import compile_pattern
from trimtab.spec.language.syntax import (
    And,
    Arithmetic,
    Between,
    Column,
    Comparator,
    Comparison,
    Expression,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Operator,
    Or,
)

Value: TypeAlias = int | float | str | None
"""What a column of a row holds; None is NULL."""

ReadColumn: TypeAlias = Callable[[str], Value]
"""A row: the value of each column by its name."""

Predicate: TypeAlias = Callable[[ReadColumn], bool | None]
"""Whether a condition holds for a row; None is NULL."""


def compile_predicate(expression: Expression) -> Predicate:
    """The condition as a function of a row; it has passed ``check_condition``.

    >>> from trimtab.spec.language.syntax import NOWHERE, Name
    >>> layer = Column(name=Name(text="layer", span=NOWHERE), span=NOWHERE)
    >>> four = Literal(value=4, span=NOWHERE)
    >>> below = compile_predicate(
    ...     Comparison(operator=Comparator.LESS, left=layer, right=four, span=NOWHERE)
    ... )
    >>> below({"layer": 3}.get), below({"layer": 4}.get), below({"layer": None}.get)
    (True, False, None)
    """
    match expression:
        case And(operands=operands):
            return _all_of([compile_predicate(operand) for operand in operands])
        case Or(operands=operands):
            return _any_of([compile_predicate(operand) for operand in operands])
        case Not(operand=operand):
            return _negated(compile_predicate(operand), is_negated=True)
        case Comparison():
            return _comparison(expression)
        case InList(operand=operand, items=items):
            values = frozenset(item.value for item in items)
            return _negated(_tested(_compile_value(operand), values.__contains__), expression.is_negated)
        case Like(operand=operand, pattern=pattern):
            matches = compile_pattern(str(pattern.value))
            return _negated(_tested(_compile_value(operand), matches), expression.is_negated)
        case Between():
            return _between(expression)
        case IsNull(operand=operand, is_negated=is_negated):
            value = _compile_value(operand)
            return lambda row: (value(row) is None) is not is_negated
        case Column() | Literal() | Arithmetic():
            raise AssertionError("a value is no condition: check_condition refuses it")
        case _:
            assert_never(expression)


# Compiling. Closures hold what is known before the first row; a row costs a few calls.

_Valued: TypeAlias = Callable[[ReadColumn], Value]

_COMPARISONS: Mapping[Comparator, Callable[[Any, Any], bool]] = {
    Comparator.EQUAL: operator.eq,
    Comparator.NOT_EQUAL: operator.ne,
    Comparator.LESS: operator.lt,
    Comparator.LESS_EQUAL: operator.le,
    Comparator.GREATER: operator.gt,
    Comparator.GREATER_EQUAL: operator.ge,
}


def _compile_value(expression: Expression) -> _Valued:
    match expression:
        case Literal(value=value):
            return lambda row: value
        case Column(name=name):
            column = name.text
            return lambda row: row(column)
        case Arithmetic():
            return _arithmetic(expression)
        case _:
            raise AssertionError("a condition is no value: check_condition refuses it")


def _comparison(expression: Comparison) -> Predicate:
    compare = _COMPARISONS[expression.operator]
    left, right = expression.left, expression.right
    if isinstance(left, Column) and isinstance(right, Literal):
        # The common form, without the two calls that find its operands.
        column, constant = left.name.text, right.value

        def test_column(row: ReadColumn) -> bool | None:
            found = row(column)
            return None if found is None else compare(found, constant)

        return test_column
    first, second = _compile_value(left), _compile_value(right)

    def test(row: ReadColumn) -> bool | None:
        one, other = first(row), second(row)
        return None if one is None or other is None else compare(one, other)

    return test


def _between(expression: Between) -> Predicate:
    fields = {"span": expression.span}
    at_least = Comparison(
        operator=Comparator.GREATER_EQUAL, left=expression.operand, right=expression.low, **fields
    )
    at_most = Comparison(
        operator=Comparator.LESS_EQUAL, left=expression.operand, right=expression.high, **fields
    )
    return _negated(_all_of([_comparison(at_least), _comparison(at_most)]), expression.is_negated)


def _tested(value: _Valued, holds: Callable[..., bool]) -> Predicate:
    def test(row: ReadColumn) -> bool | None:
        found = value(row)
        return None if found is None else holds(found)

    return test


def _negated(predicate: Predicate, is_negated: bool) -> Predicate:
    if not is_negated:
        return predicate

    def test(row: ReadColumn) -> bool | None:
        found = predicate(row)
        return None if found is None else not found

    return test


def _all_of(predicates: list[Predicate]) -> Predicate:
    def test(row: ReadColumn) -> bool | None:
        result: bool | None = True
        for predicate in predicates:
            found = predicate(row)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return test


def _any_of(predicates: list[Predicate]) -> Predicate:
    def test(row: ReadColumn) -> bool | None:
        result: bool | None = False
        for predicate in predicates:
            found = predicate(row)
            if found is True:
                return True
            if found is None:
                result = None
        return result

    return test


def _arithmetic(expression: Arithmetic) -> _Valued:
    calculate = _CALCULATIONS[expression.operator]
    first, second = _compile_value(expression.left), _compile_value(expression.right)

    def value(row: ReadColumn) -> Value:
        one, other = first(row), second(row)
        if one is None or other is None:
            return None
        assert not isinstance(one, str), "check_condition refuses arithmetic on text"
        assert not isinstance(other, str), "check_condition refuses arithmetic on text"
        return calculate(one, other)

    return value


def _bounded(result: int | float) -> int | float | None:
    """The result: a whole number of 64 bits or a float; None if it is not a number."""
    if isinstance(result, int):
        return result if -(2**63) <= result < 2**63 else float(result)
    return None if math.isnan(result) else result


def _quotient(one: int | float, other: int | float) -> int | float | None:
    return None if other == 0 else _bounded(float(one) / float(other))


def _remainder(one: int | float, other: int | float) -> int | float | None:
    if other == 0 or math.isinf(one):
        return None
    if isinstance(one, int) and isinstance(other, int):
        return abs(one) % abs(other) * (-1 if one < 0 else 1)
    return math.fmod(one, other)


_CALCULATIONS: Mapping[Operator, Callable[[int | float, int | float], int | float | None]] = {
    Operator.ADD: lambda one, other: _bounded(one + other),
    Operator.SUBTRACT: lambda one, other: _bounded(one - other),
    Operator.MULTIPLY: lambda one, other: _bounded(one * other),
    Operator.DIVIDE: _quotient,
    Operator.REMAINDER: _remainder,
}
