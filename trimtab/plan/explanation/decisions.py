"""Which statement decided what for which rows: rows that are decided alike are told once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab.plan.explanation.ranges import ranges
from trimtab.plan.physical import Plan
from trimtab.plan.relations.decisions import Decided as RowDecided
from trimtab.plan.relations.decisions import decisions_of
from trimtab.plan.tables import Row, Table
from trimtab.spec import Program
from trimtab.terms import Span

_TABLES = (Table.PARAMS, Table.GRADS, Table.STATES, Table.ACTIVATIONS, Table.LAYERS)
"""Those whose rows are told of, in order; what is decided about experts follows from their parameters."""


@dataclass(frozen=True, slots=True)
class Decided:
    """One property of a row.

    Args:
        property: ``split tp``, ``store dp``, ``route dp (groups 0-3)``, ``keep``.
        value: ``heads``, ``pieces``, ``tree``, ``bf16``.
        line: The statement that decided it; None where the prelude did.
    """

    property: str
    value: str
    line: Span | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RowClass:
    """Rows of one table that are decided alike.

    Args:
        rows: Their names in short: ``layers.0-3.mlp.up.weight``.
        num_rows: How many there are.
        decided: What was said about them, in the order of the language; empty where nothing was.
    """

    rows: tuple[str, ...]
    num_rows: int
    decided: tuple[Decided, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionChange:
    """A property that two plans decide differently for some rows.

    Args:
        rows: Their names in short.
        num_rows: How many there are.
        before: In the first plan; None where nothing was said.
        after: In the second.
    """

    rows: tuple[str, ...]
    num_rows: int
    before: Decided | None
    after: Decided | None


def decisions(plan: Plan, program: Program) -> Mapping[Table, tuple[RowClass, ...]]:
    """For every table with rows its classes of rows, those first that come first in the network.

    Args:
        plan: Compiled.
        program: What it was compiled from.
    """
    decided = _by_row(plan, program)
    found = {table: tuple(_classes(plan, table, decided[table])) for table in _TABLES}
    return {table: classes for table, classes in found.items() if classes}


def decision_changes(
    before: tuple[Plan, Program], after: tuple[Plan, Program]
) -> Mapping[Table, tuple[DecisionChange, ...]]:
    """What two plans decide differently, for the rows that both have; a value that another line decides is the same."""
    firsts, seconds = _by_row(*before), _by_row(*after)
    found = {}
    for table in _TABLES:
        rows, others = before[0].bound.rows[table], after[0].bound.rows[table]
        both = [row for name, row in rows.items() if name in others]
        found[table] = tuple(_changes(both, firsts[table], seconds[table]))
    return {table: changes for table, changes in found.items() if changes}


_ByName = Mapping[str, Sequence[RowDecided]]


def _by_row(plan: Plan, program: Program) -> Mapping[Table, _ByName]:
    found: dict[Table, dict[str, list[RowDecided]]] = {table: {} for table in Table}
    for decided in decisions_of(plan, program):
        found[decided.table].setdefault(decided.name, []).append(decided)
    return found


def _classes(plan: Plan, table: Table, decided: _ByName) -> Iterator[RowClass]:
    # Spans are compared by identity: every one belongs to one statement.
    by_key: dict[tuple[tuple[object, ...], ...], list[Row]] = {}
    for row in plan.bound.rows[table].values():
        key = tuple(
            [
                (item.property, item.axis, item.groups, item.value, id(item.span))
                for item in decided.get(row.name, ())
            ]
        )
        by_key.setdefault(key, []).append(row)
    for members in by_key.values():
        yield RowClass(
            rows=tuple(_names(members)),
            num_rows=len(members),
            decided=tuple(_told(item) for item in decided.get(members[0].name, ())),
        )


def _changes(rows: Sequence[Row], firsts: _ByName, seconds: _ByName) -> Iterator[DecisionChange]:
    by_change: dict[tuple[Decided | None, Decided | None], list[Row]] = {}
    for row in rows:
        was = {item.property: item for item in map(_told, firsts.get(row.name, ()))}
        is_now = {item.property: item for item in map(_told, seconds.get(row.name, ()))}
        for name in dict.fromkeys((*was, *is_now)):
            before, after = was.get(name), is_now.get(name)
            if before is None or after is None or before.value != after.value:
                by_change.setdefault((before, after), []).append(row)
    for (before, after), members in by_change.items():
        yield DecisionChange(rows=tuple(_names(members)), num_rows=len(members), before=before, after=after)


def _told(decided: RowDecided) -> Decided:
    where = f" {decided.axis}" if decided.axis else ""
    groups = "" if decided.groups is None else f" (groups {ranges(decided.groups)})"
    return Decided(f"{decided.property.value}{where}{groups}", decided.value, decided.span)


def _names(rows: Sequence[Row]) -> Iterator[str]:
    """Names with layers as ranges, those without a layer first."""
    layers: dict[str, list[int]] = {}
    for row in rows:
        if row.layer is None:
            yield row.name
        else:
            name = row.name.removeprefix(f"layers.{row.layer}").removeprefix(".")
            layers.setdefault(name, []).append(row.layer)
    for name, numbers in layers.items():
        prefix = f"layers.{ranges(numbers)}"
        yield f"{prefix}.{name}" if name else prefix
