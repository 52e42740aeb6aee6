"""The relations ``params``, ``grads``, ``states`` and ``activations``: how every tensor lies, and which line says so.

Their first columns are those that a ``WHERE`` of the strategy language compares, so that a condition can be
tried out in a query before it is written into a formula.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab.plan.bound import Bound
from trimtab.plan.physical import Plan
from trimtab.plan.placements import Placements
from trimtab.plan.program import Operator, Parameter
from trimtab.plan.relations.lines import lines_of
from trimtab.plan.relations.pieces import Pieces
from trimtab.plan.relations.sums import over_axes, sums_of_gradients
from trimtab.plan.tables import Row, Table
from trimtab.terms import Column, ColumnType, Relation, Schema, Span

_TEXT, _INTEGER, _BOOLEAN = ColumnType.TEXT, ColumnType.INTEGER, ColumnType.BOOLEAN


class OfRow(Protocol):
    """Whatever has the columns that the strategy language knows."""

    @property
    def row(self) -> Row:
        """What a ``WHERE`` compares."""


LANGUAGE_COLUMNS: tuple[Column[OfRow], ...] = (
    Column("name", _TEXT, "one of a kind within its table", lambda found: found.row.name),
    Column("layer", _INTEGER, "counted from 0; NULL outside of layers", lambda found: found.row.layer),
    Column("kind", _TEXT, "what it is part of, as in formulas", lambda found: found.row.kind),
    Column(
        "dims", _TEXT, "named dims, outermost first: `vocab,embed`", lambda found: found.row.value("dims")
    ),
    Column("shape", _TEXT, "elements along each dim: `256,128`", lambda found: found.row.value("shape")),
    Column("numel", _INTEGER, "elements before anything is split", lambda found: found.row.numel),
    Column("bytes", _INTEGER, "bytes before anything is split, in `dtype`", lambda found: found.row.bytes),
    Column("dtype", _TEXT, "type before KEEP or COMPUTE says otherwise", lambda found: found.row.dtype),
    Column("stage", _INTEGER, "pipeline stage that holds it", lambda found: found.row.stage),
)
"""As in ``WHERE``, under the same names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A parameter, its gradient or its states.

    Args:
        row: As the language sees it.
        parameter: As the plan lays it out.
        local_bytes: On one rank while it is used.
        stored_bytes: On one rank between uses.
        sums: Collectives that sum it over ranks, of a gradient.
    """

    row: Row
    parameter: Parameter
    local_bytes: int
    stored_bytes: int
    sums: Sequence[Operator] = ()

    @property
    def kept_dtype(self) -> str:
        """The type that it is kept in."""
        return self.parameter.dtypes[self.row.table.value]

    @property
    def placements(self) -> Placements:
        """How it lies between uses."""
        return self.parameter.stored[self.row.table.value]

    def lines(self, decision: str) -> str | None:
        """Where a decision about it was written, over all axes: ``split``, ``average``."""
        spans = [span for key, span in self.parameter.lines.items() if key.split(" ")[0] == decision]
        return lines_of(spans)

    def own_lines(self, decision: str) -> str | None:
        """Where a decision about this table was written, over all axes: ``store``, ``keep``, ``offload``."""
        wanted = [decision, self.row.table.value]
        return lines_of(span for key, span in self.parameter.lines.items() if key.split(" ")[:2] == wanted)

    @property
    def is_offloaded(self) -> bool:
        """Whether it is kept in host memory."""
        return self.row.table.value in self.parameter.offloaded


_SPLIT: tuple[Column[Held], ...] = (
    Column("split_line", _TEXT, "the SPLIT that cuts it", lambda found: found.lines("split")),
)
_HELD: tuple[Column[Held], ...] = (
    Column("kept_dtype", _TEXT, "type that it is kept in", lambda found: found.kept_dtype),
    Column(
        "local_bytes", _INTEGER, "on one rank while it is used, the largest piece", lambda found: found.local_bytes
    ),
    Column("stored_bytes", _INTEGER, "on one rank between uses", lambda found: found.stored_bytes),
    Column(
        "placements", _TEXT, "how it lies between uses: `split heads over tp, stored over dp`",
        lambda found: str(found.placements),
    ),
    Column("store_line", _TEXT, "the STORE that cuts it into pieces", lambda found: found.own_lines("store")),
    Column("keep_line", _TEXT, "the KEEP that says its type", lambda found: found.own_lines("keep")),
    Column("offloaded", _BOOLEAN, "whether it waits in host memory", lambda found: found.is_offloaded),
    Column("offload_line", _TEXT, "the OFFLOAD that says so", lambda found: found.own_lines("offload")),
)  # fmt: skip

PARAMS: Schema[Held] = Schema(
    name="params",
    meaning="a parameter; a tied head is the embedding's row",
    columns=(
        *LANGUAGE_COLUMNS,
        *_HELD,
        *_SPLIT,
        Column("average_line", _TEXT, "the AVERAGE that lets it vary", lambda found: found.lines("average")),
    ),
)

GRADS: Schema[Held] = Schema(
    name="grads",
    meaning="the gradient of a parameter, under the parameter's name",
    columns=(
        *LANGUAGE_COLUMNS,
        *_HELD,
        *_SPLIT,
        Column(
            "sum_axes", _TEXT, "axes that it is summed over, in the order of the sums: `tp, dp`",
            lambda found: _axes(found.sums),
        ),
        Column(
            "route", _TEXT, "route of the sums; by axis where they differ: `dp: tree, site: ring`",
            lambda found: over_axes(found.sums, lambda transfer: transfer.route),
        ),
        Column(
            "wire", _TEXT, "type on the wire, likewise",
            lambda found: over_axes(found.sums, lambda transfer: transfer.wire),
        ),
        Column(
            "compress", _TEXT, "compression, likewise",
            lambda found: over_axes(found.sums, lambda transfer: transfer.compress),
        ),
        Column(
            "reduce_line", _TEXT, "the lines behind the sums: a REDUCE, else the SPLIT that makes summands of it",
            lambda found: lines_of(operator.because.line for operator in found.sums),
        ),
    ),
)  # fmt: skip

STATES: Schema[Held] = Schema(
    name="states",
    meaning="what the optimizer keeps for a parameter, under the parameter's name",
    columns=(*LANGUAGE_COLUMNS, *_HELD, *_SPLIT),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """An activation.

    Args:
        row: As the language sees it, for one microbatch of one replica.
        bound: Of the plan.
        dtype: That it is computed in.
        placements: How it lies.
        local_bytes: On one rank when it is made.
        stored_bytes: On one rank from the forward to the backward pass.
    """

    row: Row
    bound: Bound
    dtype: str
    placements: Placements
    local_bytes: int
    stored_bytes: int

    @property
    def recompute_line(self) -> Span | None:
        """The statement that lets the backward pass make it again."""
        return self.bound.recomputed.get(self.row.name)

    @property
    def offload_line(self) -> Span | None:
        """The statement that lets it wait in host memory."""
        return self.bound.offloaded[Table.ACTIVATIONS].get(self.row.name)

    @property
    def cuts(self) -> Iterator[Span | None]:
        """The statements that cut it."""
        for decision in self.bound.splits[Table.ACTIVATIONS].get(self.row.name, {}).values():
            yield decision.line


ACTIVATIONS: Schema[Made] = Schema(
    name="activations",
    meaning="what the forward pass of one microbatch makes",
    columns=(
        *LANGUAGE_COLUMNS,
        Column("computed_dtype", _TEXT, "type that it is computed in", lambda found: found.dtype),
        Column(
            "local_bytes", _INTEGER, "on one rank when it is made, the largest piece", lambda found: found.local_bytes
        ),
        Column(
            "stored_bytes", _INTEGER, "on one rank from the forward to the backward pass, gathered copies included",
            lambda found: found.stored_bytes,
        ),
        Column(
            "placements", _TEXT, "how it lies: `split batch over dp, split heads over tp`",
            lambda found: str(found.placements),
        ),
        Column("split_line", _TEXT, "the SPLITs that cut it", lambda found: lines_of(found.cuts)),
        Column("recomputed", _BOOLEAN, "whether the backward pass makes it again", lambda found: bool(found.recompute_line)),
        Column(
            "recompute_line", _TEXT, "the RECOMPUTE that says so",
            lambda found: lines_of(filter(None, [found.recompute_line])),
        ),
        Column("offloaded", _BOOLEAN, "whether it waits in host memory", lambda found: bool(found.offload_line)),
        Column(
            "offload_line", _TEXT, "the OFFLOAD that says so",
            lambda found: lines_of(filter(None, [found.offload_line])),
        ),
    ),
)  # fmt: skip


def tensor_relations(plan: Plan, pieces: Pieces) -> Iterator[Relation]:
    """All four, in the order of the language."""
    yield PARAMS.filled(lambda: _held(plan, pieces, Table.PARAMS))
    yield GRADS.filled(lambda: _held(plan, pieces, Table.GRADS))
    yield STATES.filled(lambda: _held(plan, pieces, Table.STATES))
    yield ACTIVATIONS.filled(lambda: _made(plan, pieces))


def _held(plan: Plan, pieces: Pieces, table: Table) -> Iterator[Held]:
    sums: Mapping[str, Sequence[Operator]] = sums_of_gradients(plan) if table is Table.GRADS else {}
    for name, row in plan.bound.rows[table].items():
        parameter = plan.parameters[name]
        stored_bytes = pieces.stored_bytes(parameter, table)
        yield Held(
            row=row,
            parameter=parameter,
            # The optimizer works on the pieces as they are stored.
            local_bytes=stored_bytes if table is Table.STATES else pieces.used_bytes(parameter, table),
            stored_bytes=stored_bytes,
            sums=sums.get(name, ()),
        )


def _made(plan: Plan, pieces: Pieces) -> Iterator[Made]:
    for row in plan.bound.rows[Table.ACTIVATIONS].values():
        value, kept_bytes = pieces.activation(row)
        yield Made(
            row=row,
            bound=plan.bound,
            dtype=value.dtype,
            placements=value.placements,
            local_bytes=pieces.value_bytes(value),
            stored_bytes=kept_bytes,
        )


def _axes(sums: Iterable[Operator]) -> str | None:
    axes = (axis for operator in sums if operator.transfer for axis in operator.transfer.axes)
    return ", ".join(dict.fromkeys(axes)) or None
