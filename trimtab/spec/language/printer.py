"""A syntax tree back as text."""

import re
from collections.abc import Iterator, Sequence
from typing import assert_never

from trimtab.spec.language.syntax import (
    And,
    Arithmetic,
    AverageStatement,
    AxisSize,
    Between,
    Call,
    Column,
    Comparison,
    ComputeStatement,
    Expression,
    InList,
    IsNull,
    KeepStatement,
    Like,
    Literal,
    MeshStatement,
    Name,
    Not,
    OffloadStatement,
    Operator,
    Or,
    PlaceStatement,
    Program,
    RecomputeStatement,
    ReduceStatement,
    SealStatement,
    SplitStatement,
    StoreStatement,
    UseStatement,
    WrittenStatement,
)
from trimtab.spec.language.vocabulary import KEYWORDS


def print_program(program: Program) -> str:
    """The program in canonical form, one statement a line; parsing it gives an equal program."""
    return "".join(f"{print_statement(statement)}\n" for statement in program.statements)


def print_statement(statement: WrittenStatement) -> str:
    """One statement in canonical form, without a line end."""
    match statement:
        case MeshStatement(axes=axes):
            return f"MESH {', '.join(_axis(axis) for axis in axes)}"
        case UseStatement():
            return _use(statement)
        case _:
            return " ".join(_words(statement))


def print_expression(expression: Expression) -> str:
    """A condition or a value in canonical form, with as few parentheses as it can be read with."""
    match expression:
        case Or(operands=operands):
            return " OR ".join(_inside(operand, Or) for operand in operands)
        case And(operands=operands):
            return " AND ".join(_inside(operand, Or, And) for operand in operands)
        case Not(operand=operand):
            return f"NOT {_inside(operand, Or, And)}"
        case Comparison(operator=operator, left=left, right=right):
            return f"{print_expression(left)} {operator} {print_expression(right)}"
        case InList(operand=operand, items=items, is_negated=is_negated):
            listed = ", ".join(_value(item) for item in items)
            return f"{print_expression(operand)} {_not(is_negated)}IN ({listed})"
        case Like(operand=operand, pattern=pattern, is_negated=is_negated):
            return f"{print_expression(operand)} {_not(is_negated)}LIKE {_value(pattern)}"
        case Between(operand=operand, low=low, high=high, is_negated=is_negated):
            ends = f"{print_expression(low)} AND {print_expression(high)}"
            return f"{print_expression(operand)} {_not(is_negated)}BETWEEN {ends}"
        case IsNull(operand=operand, is_negated=is_negated):
            return f"{print_expression(operand)} IS {_not(is_negated)}NULL"
        case Arithmetic():
            return _arithmetic(expression)
        case Column(name=name):
            return name.text
        case Literal():
            return _value(expression)
        case _:
            assert_never(expression)


def _words(
    statement: SplitStatement
    | PlaceStatement
    | StoreStatement
    | ReduceStatement
    | AverageStatement
    | RecomputeStatement
    | OffloadStatement
    | KeepStatement
    | ComputeStatement
    | SealStatement,
) -> Iterator[str]:
    """The verb, what it speaks of, and its clauses in canonical order."""
    match statement:
        case SplitStatement(dims=dims, table=table):
            yield f"SPLIT {_names(dims)}"
            yield from _clause("OF", table)
            yield from _condition("WHERE", statement.where)
            yield f"OVER {_names(statement.axes)}"
            yield from _call("USING", statement.using)
            if statement.microbatches is not None:
                yield f"MICROBATCHES {statement.microbatches}"
            yield from _clause("BALANCE BY", statement.balance)
        case PlaceStatement(table=table, where=where):
            yield f"PLACE {table.text}"
            yield from _range(where) if _is_range(where) else _condition("WHERE", where)
            yield f"ON {statement.axis.text} {statement.index}"
        case StoreStatement(tables=tables, where=where, axes=axes):
            yield f"STORE {_names(tables)}"
            yield from _condition("WHERE", where)
            yield f"OVER {_names(axes)}"
        case ReduceStatement(table=table, where=where, axes=axes):
            yield f"REDUCE {table.text}"
            yield from _condition("WHERE", where)
            yield f"OVER {_names(axes)}"
            yield from _call("USING", statement.using)
            if statement.bucket_bytes is not None:
                yield f"BUCKET {print_size(statement.bucket_bytes)}"
            yield from _call("COMPRESS", statement.compress)
            yield from _clause("IN", statement.wire)
        case AverageStatement(table=table, where=where, axes=axes):
            yield f"AVERAGE {table.text}"
            yield from _condition("WHERE", where)
            yield f"OVER {_names(axes)}"
            yield f"EVERY {statement.every} STEPS"
            yield from _call("USING", statement.using)
            yield from _call("COMPRESS", statement.compress)
            yield from _clause("IN", statement.wire)
        case RecomputeStatement(table=table, where=where):
            yield f"RECOMPUTE {table.text}"
            yield from _condition("WHERE", where)
        case OffloadStatement(tables=tables, where=where, to=to):
            yield f"OFFLOAD {_names(tables)}"
            yield from _condition("WHERE", where)
            yield f"TO {to.text}"
        case KeepStatement(tables=tables, where=where, dtype=dtype):
            yield f"KEEP {_names(tables)}"
            yield from _condition("WHERE", where)
            yield f"IN {dtype.text}"
        case ComputeStatement(table=table, where=where, dtype=dtype):
            yield f"COMPUTE {table.text}"
            yield from _condition("WHERE", where)
            yield f"IN {dtype.text}"
        case SealStatement(tables=tables, where=where, axes=axes):
            yield f"SEAL {_names(tables)}"
            yield from _condition("WHERE", where)
            yield f"OVER {_names(axes)}"
        case _:
            assert_never(statement)
    yield from _condition("ON", getattr(statement, "on", None))
    if statement.if_any:
        yield "IF ANY"


def print_size(num_bytes: int) -> str:
    """Bytes in the largest unit of which they are a whole number: ``25MB``, ``1MiB``, ``7B``.

    >>> print_size(25_000_000), print_size(2**20), print_size(7)
    ('25MB', '1MiB', '7B')
    """
    fitting = (unit for unit, size in _UNITS if num_bytes and num_bytes % size == 0)
    unit = next(fitting, "B")
    return f"{num_bytes // dict(_UNITS)[unit]}{unit}"


_UNITS = sorted(
    {"B": 1, "KB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30, "TB": 10**12, "TiB": 2**40}.items(),
    key=lambda unit: -unit[1],
)  # fmt: skip


def _axis(axis: AxisSize) -> str:
    size = "*" if axis.size is None else str(axis.size)
    return f"{axis.axis.text} {size}" + (f" WITHIN {axis.within.text}" if axis.within else "")


def _use(statement: UseStatement) -> str:
    arguments = ", ".join(
        f"{argument.name.text} = {_value(argument.value)}" for argument in statement.arguments
    )
    return f"USE {_value(statement.preset)}" + (f"({arguments})" if arguments else "")


def _names(names: Sequence[Name]) -> str:
    return ", ".join(name.text for name in names)


def _clause(words: str, name: Name | None) -> Iterator[str]:
    if name is not None:
        yield f"{words} {name.text}"


def _condition(word: str, condition: Expression | None) -> Iterator[str]:
    if condition is not None:
        yield f"{word} {print_expression(condition)}"


def _call(word: str, call: Call | None) -> Iterator[str]:
    if call is not None:
        arguments = ", ".join(_setting(argument) for argument in call.arguments)
        yield f"{word} {call.name.text}" + (f"({arguments})" if arguments else "")


def _setting(argument: Literal) -> str:
    """An argument of a function; a text that can be a bare word is one."""
    value = argument.value
    is_word = isinstance(value, str) and _WORD.fullmatch(value) and value.upper() not in KEYWORDS
    return value if isinstance(value, str) and is_word else _value(argument)


def _is_range(where: Expression | None) -> bool:
    """Whether the rows of a PLACE can be written as BETWEEN."""
    match where:
        case Between(
            operand=Column(name=Name(text="layer")),
            low=Literal(value=int(low)),
            high=Literal(value=int(high)),
            is_negated=False,
        ):
            return low >= 0 and high >= 0
        case _:
            return False


def _range(where: Expression | None) -> Iterator[str]:
    assert isinstance(where, Between)
    yield f"BETWEEN {print_expression(where.low)} AND {print_expression(where.high)}"


def _arithmetic(expression: Arithmetic) -> str:
    """Signs of one precedence belong to the left; a group on the right keeps its parentheses."""
    precedence = _precedence(expression)
    left, right = print_expression(expression.left), print_expression(expression.right)
    if _precedence(expression.left) < precedence:
        left = f"({left})"
    if _precedence(expression.right) <= precedence:
        right = f"({right})"
    return f"{left} {expression.operator} {right}"


def _precedence(expression: Expression) -> int:
    if not isinstance(expression, Arithmetic):
        return 3
    return 1 if expression.operator in (Operator.ADD, Operator.SUBTRACT) else 2


def _inside(operand: Expression, *grouped: type) -> str:
    text = print_expression(operand)
    return f"({text})" if isinstance(operand, grouped) else text


def _not(is_negated: bool) -> str:
    return "NOT " if is_negated else ""


def _value(literal: Literal) -> str:
    value = literal.value
    if not isinstance(value, str):
        return repr(value)
    escaped = value.replace("'", "''")
    return f"'{escaped}'"


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
