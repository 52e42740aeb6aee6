"""The relations ``decisions`` and ``statements``: what every line of the program decides, row by row."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from trimtab.plan.bound import Bound, Reduction
from trimtab.plan.physical import Plan
from trimtab.plan.placements import PlacementKind
from trimtab.plan.program import Operator
from trimtab.plan.relations.lines import line_of
from trimtab.plan.relations.sums import sums_of_gradients
from trimtab.plan.tables import Row, Table
from trimtab.spec import Program
from trimtab.spec.language import (
    MeshStatement,
    PlaceStatement,
    Statement,
    compile_predicate,
    print_statement,
)
from trimtab.terms import Column, ColumnType, Relation, Schema, Span

_TEXT, _INTEGER = ColumnType.TEXT, ColumnType.INTEGER


class Property(StrEnum):
    """What is decided about a row."""

    SPLIT = "split"
    STORE = "store"
    SUM = "sum"
    ROUTE = "route"
    WIRE = "wire"
    COMPRESS = "compress"
    BUCKET = "bucket"
    AVERAGE = "average"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"
    KEEP = "keep"
    COMPUTE = "compute"
    ATTENTION = "attention"
    SEAL = "seal"
    STAGE = "stage"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """One property of one row.

    Args:
        table: Of the row.
        name: Of the row.
        property: What was decided.
        axis: Where; None if it holds on every axis.
        groups: Indices of the process groups that it holds for, of an ON; None for all.
        value: How it was decided.
        span: The statement; None for a default.
    """

    table: Table
    name: str
    property: Property
    axis: str | None = None
    groups: tuple[int, ...] | None = None
    value: str
    span: Span | None


DECISIONS: Schema[tuple[Decided, int | None]] = Schema(
    name="decisions",
    meaning="a property of a row, with the line that decided it",
    columns=(
        Column("table_name", _TEXT, "table of the row: `params`, `grads`, …", lambda found: found[0].table.value),
        Column("name", _TEXT, "of the row", lambda found: found[0].name),
        Column("property", _TEXT, "what was decided: `split`, `store`, `route`, …", lambda found: found[0].property.value),
        Column("axis", _TEXT, "where; NULL if it holds on every axis", lambda found: found[0].axis),
        Column(
            "groups", _TEXT, "process groups along the axis that it holds for, of an ON: `0, 2`; NULL for all",
            lambda found: None if found[0].groups is None else ", ".join(map(str, found[0].groups)),
        ),
        Column("value", _TEXT, "how: a dim, a route, a type, …", lambda found: found[0].value),
        Column("line", _TEXT, "the line that decided, or `default`", lambda found: line_of(found[0].span)),
        Column("statement", _INTEGER, "that line's row in `statements`; NULL for a default", lambda found: found[1]),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A statement with what became of it."""

    number: int
    statement: Statement
    num_rows: int | None
    num_decisions: int | None


STATEMENTS: Schema[Written] = Schema(
    name="statements",
    meaning="a statement of the program, presets written out",
    columns=(
        Column("statement", _INTEGER, "counted from 1", lambda written: written.number),
        Column("line", _TEXT, "where it stands", lambda written: line_of(written.statement.span)),
        Column("verb", _TEXT, "`MESH`, `SPLIT`, `STORE`, …", lambda written: _verb(written.statement)),
        Column("text", _TEXT, "in canonical form", lambda written: print_statement(written.statement)),
        Column("rows", _INTEGER, "rows of which it decides something; NULL for MESH", lambda written: written.num_rows),
        Column("decisions", _INTEGER, "its rows in `decisions`; NULL for MESH", lambda written: written.num_decisions),
    ),
)  # fmt: skip


def decision_relations(
    plan: Plan, program: Program, numbers: Mapping[Span | None, int]
) -> Iterator[Relation]:
    """Both relations.

    Args:
        plan: Compiled.
        program: What it was compiled from.
        numbers: Of the statements, by place.
    """
    yield DECISIONS.filled(
        lambda: ((found, numbers.get(found.span)) for found in decisions_of(plan, program))
    )
    yield STATEMENTS.filled(lambda: _written(plan, program))


def decisions_of(plan: Plan, program: Program) -> Iterator[Decided]:
    """Everything that was decided about rows, table by table in the order of the language.

    What no statement says is in here only where it moves data: the split of the batch and the sums that follow.
    """
    bound = plan.bound
    for table in (Table.PARAMS, Table.ACTIVATIONS):
        yield from _splits(bound, table)
    yield from _attention(bound)
    for table in (Table.PARAMS, Table.GRADS, Table.STATES):
        yield from _storage(plan, table)
    yield from _averages(bound)
    yield from _sums(plan)
    for table in Table:
        yield from _in_memory(bound, table)
    yield from _layers(plan, program)


def _splits(bound: Bound, table: Table) -> Iterator[Decided]:
    for name, cuts in bound.splits[table].items():
        for axis, decision in cuts.items():
            yield Decided(
                table=table, name=name, property=Property.SPLIT, axis=axis, value=decision.value, span=decision.line
            )  # fmt: skip


def _attention(bound: Bound) -> Iterator[Decided]:
    for row in bound.rows[Table.ACTIVATIONS].values():
        if row.name.endswith(".attention.out"):
            for axis, decision in bound.attention.items():
                yield Decided(
                    table=row.table,
                    name=row.name,
                    property=Property.ATTENTION,
                    axis=axis,
                    value=decision.value,
                    span=decision.line,
                )


def _storage(plan: Plan, table: Table) -> Iterator[Decided]:
    for parameter in plan.parameters.values():
        for axis in parameter.stored[table.value].axes_of(PlacementKind.STORED):
            line = parameter.lines[f"store {table.value} {axis}"]
            yield Decided(
                table=table, name=parameter.name, property=Property.STORE, axis=axis, value="pieces", span=line
            )  # fmt: skip


def _averages(bound: Bound) -> Iterator[Decided]:
    for name, by_axis in bound.averages.items():
        for axis, averaging in by_axis.items():
            yield Decided(
                table=Table.PARAMS,
                name=name,
                property=Property.AVERAGE,
                axis=axis,
                value=f"{averaging.outer} every {averaging.every} steps",
                span=averaging.line,
            )


def _sums(plan: Plan) -> Iterator[Decided]:
    for name, operators in sums_of_gradients(plan).items():
        by_axis = plan.bound.reductions.get(name, {})
        for operator in operators:
            assert operator.transfer is not None, "sums are sent"
            for axis in operator.transfer.axes:
                for groups, reduction in by_axis.get(axis, {(): Reduction()}).items():
                    told = None if len(by_axis.get(axis, ())) <= 1 else groups
                    yield from _of_sum(name, axis, told, reduction, operator)


def _of_sum(
    name: str, axis: str, groups: tuple[int, ...] | None, reduction: Reduction, operator: Operator
) -> Iterator[Decided]:
    """That there is a sum, and what was said about how."""
    said = {
        Property.ROUTE: (reduction.route.value, reduction.route.line),
        Property.WIRE: (reduction.wire.value, reduction.wire.line),
        Property.COMPRESS: (_compression(reduction), reduction.compress.line),
        Property.BUCKET: (reduction.bucket_bytes.value, reduction.bucket_bytes.line),
    }
    over = reduction.over.line or operator.because.line
    found = {Property.SUM: (operator.kind.value, over)}
    found |= {key: (str(value), line) for key, (value, line) in said.items() if line is not None}
    for key, (value, line) in found.items():
        yield Decided(
            table=Table.GRADS, name=name, property=key, axis=axis, groups=groups, value=value, span=line
        )


def _compression(reduction: Reduction) -> str:
    argument = reduction.compress_argument
    return reduction.compress.value + (f"({argument:g})" if argument is not None else "")


def _in_memory(bound: Bound, table: Table) -> Iterator[Decided]:
    """Where a row waits, in which type, whether it is made again, and whether it is encrypted when it travels."""

    def decided(name: str, key: Property, value: str, span: Span | None, axis: str | None = None) -> Decided:
        return Decided(table=table, name=name, property=key, axis=axis, value=value, span=span)

    if table is Table.ACTIVATIONS:
        for name, span in bound.recomputed.items():
            yield decided(name, Property.RECOMPUTE, "in the backward pass", span)
    for name, span in bound.offloaded[table].items():
        yield decided(name, Property.OFFLOAD, "host", span)
    for name, decision in bound.kept[table].items():
        yield decided(name, Property.KEEP, decision.value, decision.line)
    for name, axes in bound.sealed[table].items():
        for axis, span in axes.items():
            yield decided(name, Property.SEAL, "encrypted", span, axis)


def _layers(plan: Plan, program: Program) -> Iterator[Decided]:
    bound = plan.bound
    for row in bound.rows[Table.LAYERS].values():
        assert row.layer is not None, "rows of layers are layers"
        if plan.pipeline.axis is not None:
            yield Decided(
                table=Table.LAYERS,
                name=row.name,
                property=Property.STAGE,
                axis=plan.pipeline.axis,
                value=str(row.stage),
                span=_placed_by(row, program.statements) or plan.pipeline.line,
            )
        decision = bound.computed.get(row.layer)
        if decision is not None:
            yield Decided(
                table=Table.LAYERS,
                name=row.name,
                property=Property.COMPUTE,
                value=decision.value,
                span=decision.line,
            )


def _placed_by(row: Row, statements: Iterable[Statement]) -> Span | None:
    """The last PLACE that names a layer."""
    found = None
    for statement in statements:
        if isinstance(statement, PlaceStatement):
            where = statement.where
            if where is None or compile_predicate(where)(row.value) is True:
                found = statement.span
    return found


def _written(plan: Plan, program: Program) -> Iterator[Written]:
    decided: Counter[Span | None] = Counter()
    rows: dict[Span | None, set[tuple[Table, str]]] = {}
    for found in decisions_of(plan, program):
        decided[found.span] += 1
        rows.setdefault(found.span, set()).add((found.table, found.name))
    for number, statement in enumerate(program.statements, start=1):
        is_mesh = isinstance(statement, MeshStatement)
        yield Written(
            number=number,
            statement=statement,
            num_rows=None if is_mesh else len(rows.get(statement.span, ())),
            num_decisions=None if is_mesh else decided[statement.span],
        )


def _verb(statement: Statement) -> str:
    return type(statement).__name__.removesuffix("Statement").upper()
