"""Whether the words of a program name something, and stand where they may stand."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from trimtab.spec.errors import Problem
from trimtab.spec.language.conditions import check_condition
from trimtab.spec.language.syntax import (
    AverageStatement,
    Call,
    ComputeStatement,
    Expression,
    KeepStatement,
    Literal,
    MeshStatement,
    Name,
    OffloadStatement,
    PlaceStatement,
    Program,
    RecomputeStatement,
    ReduceStatement,
    SealStatement,
    SplitStatement,
    Statement,
    StoreStatement,
)
from trimtab.spec.language.vocabulary import (
    AVERAGES,
    BALANCES,
    CHANGES,
    COMPRESSIONS,
    DEVICE_COLUMNS,
    DIMS,
    HOMES,
    LEVELS,
    ROUTES,
    SEQUENCE_WAYS,
    STAGE_SCHEDULES,
    TABLE_COLUMNS,
    TABLES,
    TWO_STAGE_SCHEDULES,
    TYPES,
    Function,
    ValueKind,
)
from trimtab.spec.language.wording import did_you_mean, listed
from trimtab.terms import Span


def name_problems(program: Program, sizes: Mapping[str, int | None] | None) -> Iterator[Problem]:
    """Everything in a program that names nothing, or cannot stand where it stands.

    Args:
        program: The program.
        sizes: Axes with their sizes, None for a size that is not known; None if the axes are not known.
    """
    check = _Check(sizes=sizes, stages_per_place=_stages_per_place(program))
    for statement in program.statements:
        yield from check.statement(statement)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Check:
    """Checks statements against the axes of one mesh."""

    sizes: Mapping[str, int | None] | None
    stages_per_place: Mapping[str, int]

    def statement(self, statement: Statement) -> Iterator[Problem]:
        match statement:
            case MeshStatement(axes=axes):
                for axis in axes:
                    yield from _unknown(axis.within, LEVELS, "level")
            case SplitStatement():
                yield from self._split(statement)
            case PlaceStatement():
                yield from _tables("PLACE", (statement.table,))
                yield from _condition(statement.where)
                yield from self._axes((statement.axis,))
                yield from self._index(statement)
            case StoreStatement(tables=tables, axes=axes):
                yield from _tables("STORE", tables)
                yield from self._reach(statement.where, axes, statement.on)
            case ReduceStatement(table=table, axes=axes):
                yield from _tables("REDUCE", (table,))
                yield from self._reach(statement.where, axes, statement.on)
                yield from _calls(statement.using, ROUTES, "route")
                yield from _calls(statement.compress, COMPRESSIONS, "compression")
                yield from _unknown(statement.wire, TYPES, "type")
                yield from _at_least_one(statement.bucket_bytes, statement.span, "BUCKET", "bytes")
            case AverageStatement(table=table, axes=axes):
                yield from _tables("AVERAGE", (table,))
                yield from self._reach(statement.where, axes, statement.on)
                yield from _at_least_one(statement.every, statement.span, "EVERY", "steps")
                yield from _calls(statement.using, AVERAGES, "average")
                yield from _calls(statement.compress, COMPRESSIONS, "compression")
                yield from _unknown(statement.wire, TYPES, "type")
            case RecomputeStatement(table=table):
                yield from _tables("RECOMPUTE", (table,))
                yield from self._reach(statement.where, (), statement.on)
            case OffloadStatement(tables=tables, to=to):
                yield from _tables("OFFLOAD", tables)
                yield from self._reach(statement.where, (), statement.on)
                yield from _unknown(to, HOMES, "home")
            case KeepStatement(tables=tables, dtype=dtype):
                yield from _tables("KEEP", tables)
                yield from _condition(statement.where)
                yield from _unknown(dtype, TYPES, "type")
            case ComputeStatement(table=table, dtype=dtype):
                yield from _tables("COMPUTE", (table,))
                yield from _condition(statement.where)
                yield from _unknown(dtype, TYPES, "type")
            case SealStatement(tables=tables, axes=axes):
                yield from _tables("SEAL", tables)
                yield from self._reach(statement.where, axes, statement.on)
            case _:
                assert_never(statement)

    def _split(self, statement: SplitStatement) -> Iterator[Problem]:
        for dim in statement.dims:
            yield from _unknown(dim, DIMS, "dim")
        if statement.table is not None:
            yield from _tables("SPLIT", (statement.table,), preposition=" OF")
        yield from self._reach(statement.where, statement.axes, statement.on)
        yield from _split_clauses(statement)

    def _reach(
        self, where: Expression | None, axes: Sequence[Name], on: Expression | None
    ) -> Iterator[Problem]:
        """Which rows, which axes, which devices: what most statements say in the same words."""
        yield from _condition(where)
        yield from self._axes(axes)
        if on is not None:
            yield from check_condition(on, DEVICE_COLUMNS, what="columns of devices")

    def _axes(self, axes: Sequence[Name]) -> Iterator[Problem]:
        for index, axis in enumerate(axes):
            if axis.text in {earlier.text for earlier in axes[:index]}:
                message = f"axis {axis.text!r} is named twice"
                yield Problem(span=axis.span, message=message, hint="Keep one of the two.")
            elif self.sizes is not None and axis.text not in self.sizes:
                yield self._unknown_axis(axis, self.sizes)

    @staticmethod
    def _unknown_axis(axis: Name, sizes: Mapping[str, int | None]) -> Problem:
        known = ", ".join(f"{name}({_size(size)})" for name, size in sizes.items())
        hint = f"axes of this mesh: {known}.{did_you_mean(axis.text, list(sizes))}"
        return Problem(span=axis.span, message=f"unknown mesh axis {axis.text!r}", hint=hint)

    def _index(self, statement: PlaceStatement) -> Iterator[Problem]:
        axis, index = statement.axis.text, statement.index
        size = self.sizes.get(axis) if self.sizes is not None else None
        each = self.stages_per_place.get(axis, 1)
        if index < 0 or (size is not None and index >= size * each):
            what = "stage" if each > 1 else "place"
            there = f"{axis} has {what}s 0 to {size * each - 1}" if size else f"{what}s count from 0"
            yield Problem(span=statement.span, message=f"there is no {what} {index} on {axis}: {there}")


def _stages_per_place(program: Program) -> dict[str, int]:
    """By axis, how many stages each of its places holds under its schedule; PLACE counts them all."""
    found: dict[str, int] = {}
    for statement in program.statements:
        if not isinstance(statement, SplitStatement) or statement.using is None:
            continue
        if any(dim.text == "layers" for dim in statement.dims):
            counts = [
                argument.value for argument in statement.using.arguments if isinstance(argument.value, int)
            ]
            count = counts[0] if counts else 2 if statement.using.name.text in TWO_STAGE_SCHEDULES else 1
            found |= {axis.text: count for axis in statement.axes}
    return found


def _size(size: int | None) -> str:
    return "*" if size is None else str(size)


def _condition(where: Expression | None) -> Iterator[Problem]:
    if where is not None:
        yield from check_condition(where, TABLE_COLUMNS, what="columns")


def _unknown(name: Name | None, known: Sequence[str], what: str) -> Iterator[Problem]:
    if name is not None and name.text not in known:
        hint = f"{what}s: {', '.join(known)}.{did_you_mean(name.text, known)}"
        yield Problem(span=name.span, message=f"unknown {what} {name.text!r}", hint=hint)


def _tables(verb: str, tables: Sequence[Name], preposition: str = "") -> Iterator[Problem]:
    allowed = CHANGES[verb].tables
    for index, table in enumerate(tables):
        if table.text not in TABLES:
            yield from _unknown(table, TABLES, "table")
        elif table.text not in allowed:
            message = f"{verb}{preposition} takes {listed(allowed, last=' or ')}, not {table.text}"
            yield Problem(span=table.span, message=message)
        elif table.text in {earlier.text for earlier in tables[:index]}:
            yield Problem(
                span=table.span, message=f"{table.text!r} is named twice", hint="Keep one of the two."
            )


def _split_clauses(statement: SplitStatement) -> Iterator[Problem]:
    """USING belongs to a split of one dim, ``sequence`` or ``layers``; the others to ``layers`` only."""
    dims = [dim.text for dim in statement.dims]
    if statement.using is not None:
        if dims == ["sequence"]:
            yield from _calls(statement.using, SEQUENCE_WAYS, "sequence split")
        elif dims == ["layers"]:
            yield from _calls(statement.using, STAGE_SCHEDULES, "stage schedule")
        else:
            yield _not_for(statement.using.span, "USING", dims, ("sequence", "layers"))
    if dims != ["layers"]:
        if statement.microbatches is not None:
            yield _not_for(statement.span, "MICROBATCHES", dims, ("layers",))
        if statement.balance is not None:
            yield _not_for(statement.balance.span, "BALANCE BY", dims, ("layers",))
    yield from _at_least_one(statement.microbatches, statement.span, "MICROBATCHES", "microbatches")
    yield from _unknown(statement.balance, BALANCES, "balance")


def _not_for(span: Span, clause: str, dims: Sequence[str], owners: Sequence[str]) -> Problem:
    owned = listed([f"SPLIT {owner}" for owner in owners])
    return Problem(
        span=span,
        message=f"SPLIT {', '.join(dims)} takes no {clause}",
        hint=f"{clause} belongs to {owned}, in a statement of its own.",
    )


def _at_least_one(count: int | None, span: Span, clause: str, unit: str) -> Iterator[Problem]:
    if count is not None and count < 1:
        yield Problem(span=span, message=f"{clause} is {count} {unit}; it must be at least 1")


def _calls(call: Call | None, functions: Sequence[Function], what: str) -> Iterator[Problem]:
    if call is None:
        return
    by_name = {function.name: function for function in functions}
    function = by_name.get(call.name.text)
    if function is None:
        hint = f"{what}s: {', '.join(map(str, functions))}.{did_you_mean(call.name.text, list(by_name))}"
        yield Problem(span=call.name.span, message=f"unknown {what} {call.name.text!r}", hint=hint)
    else:
        yield from _arguments(call, function)


def _arguments(call: Call, function: Function) -> Iterator[Problem]:
    parameters, arguments = function.parameters, call.arguments
    is_enough = len(arguments) == len(parameters)
    if function.is_repeated:
        is_enough = len(arguments) >= len(parameters)
    if not is_enough:
        message = f"{call.name.text} takes {_arity(function)}, and {len(arguments)} {'is' if len(arguments) == 1 else 'are'} given"
        yield Problem(span=call.span, message=message, hint=f"Write {function}.")
        return
    for index, argument in enumerate(arguments):
        name, kind = parameters[min(index, len(parameters) - 1)]
        yield from _argument(argument, f"{function.name}: {name}", kind)
    if function.is_repeated:
        yield from _order_of_levels(arguments)


def _arity(function: Function) -> str:
    count = len(function.parameters)
    if count == 0:
        return "no arguments"
    at_least = "at least " if function.is_repeated else ""
    return f"{at_least}{count} argument{'s' if count > 1 else ''}"


def _argument(argument: Literal, what: str, kind: ValueKind) -> Iterator[Problem]:
    value = argument.value
    if _ACCEPTED[kind](value):
        return
    if kind is ValueKind.LEVEL:
        shown = str(value)
        hint = f"levels: {', '.join(LEVELS)}.{did_you_mean(shown, LEVELS)}"
        yield Problem(span=argument.span, message=f"unknown level {shown!r}", hint=hint)
    else:
        yield Problem(span=argument.span, message=f"{what} is {value!r}; it must be {kind}")


_ACCEPTED: Mapping[ValueKind, Callable[[int | float | str], bool]] = {
    ValueKind.COUNT: lambda value: isinstance(value, int) and value >= 1,
    ValueKind.FRACTION: lambda value: not isinstance(value, str) and 0 < value <= 1,
    ValueKind.MOMENTUM: lambda value: not isinstance(value, str) and 0 <= value < 1,
    ValueKind.LEVEL: lambda value: value in LEVELS,
}


def _order_of_levels(arguments: Sequence[Literal]) -> Iterator[Problem]:
    """Levels are named from the inside out, each once."""
    levels = [str(argument.value) for argument in arguments]
    if not set(levels) <= set(LEVELS):
        return
    for argument, (inner, outer) in zip(arguments[1:], itertools.pairwise(levels), strict=True):
        if LEVELS.index(inner) >= LEVELS.index(outer):
            message = f"level {outer!r} after {inner!r}: levels go from the inside out, each once"
            yield Problem(span=argument.span, message=message, hint=f"levels: {', '.join(LEVELS)}.")
