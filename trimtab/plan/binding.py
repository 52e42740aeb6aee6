"""What every statement decides for every row: the cascade.

For one row and one property the last matching statement decides, as in a style sheet. What no statement says
follows the prelude. Each decision keeps the line that made it; a statement that matches nothing is an error, one
that decides nothing is a warning.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from trimtab.plan.bound import Averaging, Axis, Bound, Decision, Name
from trimtab.plan.cascade import ByGroups, deciding_statements, first_number, fold_reductions
from trimtab.plan.devices import Device
from trimtab.plan.meshes import groups
from trimtab.plan.tables import Row, Table
from trimtab.spec import Mesh, Place, Problem, Program, StrategyError
from trimtab.spec.language import (
    AverageStatement,
    ComputeStatement,
    Expression,
    KeepStatement,
    MeshStatement,
    OffloadStatement,
    PlaceStatement,
    RecomputeStatement,
    ReduceStatement,
    SealStatement,
    SplitStatement,
    Statement,
    StoreStatement,
    compile_predicate,
)
from trimtab.terms import Span


def bind(
    program: Program,
    *,
    mesh: Mesh,
    rows: Iterable[Row],
    devices: tuple[Device, ...],
) -> Bound:
    """What a program decides for every row.

    Args:
        program: Its names are known to exist; what stands here are questions to rows and devices.
        mesh: With as many places as there are devices.
        rows: Of all tables, stages filled in.
        devices: In order of rank.

    Raises: StrategyError with every statement that matches nothing or cannot be meant.
    """
    return _Binder(program, mesh, rows, devices).bind()


_COMPANIONS = {"heads": ("heads", "kv_heads")}
"""Dims that are cut together."""

_NESTING = frozenset({"batch", "sequence"})
"""Dims that several axes may cut one after the other."""

_TAKES_ON = (ReduceStatement,)
_SHARING = (SplitStatement, StoreStatement, ReduceStatement, AverageStatement)


class _Binder:
    """One use binds one program."""

    def __init__(
        self, program: Program, mesh: Mesh, rows: Iterable[Row], devices: tuple[Device, ...]
    ) -> None:
        self._program = program
        self._mesh = mesh
        self._devices = devices
        self._rows: dict[Table, dict[Name, Row]] = {table: {} for table in Table}
        for row in rows:
            self._rows[row.table][row.name] = row
        self._problems: list[Problem] = []
        self._num_before = 0
        self._owners: dict[tuple[object, ...], Statement] = {}
        self._matched: dict[int, Statement] = {}
        self._splits: dict[Table, dict[Name, dict[Axis, Decision[str]]]] = {
            Table.PARAMS: {},
            Table.ACTIVATIONS: {},
        }
        self._attention: dict[Axis, Decision[str]] = {}
        self._stage_axes = {
            axis.text
            for statement in program.statements
            if isinstance(statement, SplitStatement) and any(dim.text == "layers" for dim in statement.dims)
            for axis in statement.axes
        }
        self._batch_axes: dict[Axis, Decision[str]] = {}
        self._stored: dict[Table, dict[Name, dict[Axis, Decision[bool]]]] = {table: {} for table in Table}
        self._reducing: dict[Name, list[ReduceStatement]] = {}
        self._averages: dict[Name, dict[Axis, Averaging]] = {}
        self._recomputed: dict[Name, Span] = {}
        self._offloaded: dict[Table, dict[Name, Span]] = {table: {} for table in Table}
        self._kept: dict[Table, dict[Name, Decision[str]]] = {table: {} for table in Table}
        self._computed: dict[int, Decision[str]] = {}
        self._sealed: dict[Table, dict[Name, dict[Axis, Span]]] = {table: {} for table in Table}
        self._sequence_axes: dict[Axis, Span] = {}

    def bind(self) -> Bound:
        self._default_batch()
        for statement in self._program.statements:
            self._num_before = len(self._problems)
            self._refuse_on(statement)
            self._refuse_stage_axis(statement)
            _BINDERS[type(statement)](self, statement)
        self._drop_needless_storage()
        self._check_cuts()
        if not self._problems:
            self._check_idle_axes()
        reductions = self._reductions()
        if self._problems:
            raise StrategyError(self._problems, self._program.documents)
        return Bound(
            mesh=self._mesh,
            devices=self._devices,
            rows=self._rows,
            batch_axes=self._batch_axes,
            splits=self._splits,
            attention=self._attention,
            stored=self._stored,
            reductions=reductions,
            reducing=self._reducing,
            averages=self._averages,
            recomputed=self._recomputed,
            offloaded=self._offloaded,
            kept=self._kept,
            computed=self._computed,
            sealed=self._sealed,
            sequence_axes=self._sequence_axes,
            warnings=tuple(self._without_effect()),
        )

    # Matching.

    def _matching(
        self, statement: Statement, table: Table, where: Expression | None, dim: str | None = None
    ) -> list[Row]:
        """Rows of a table that a condition holds for, those with a dim if one is named."""
        rows: Iterable[Row] = self._rows[table].values()
        if dim is not None:
            rows = [row for row in rows if dim in row.dims]
        if where is not None:
            holds = compile_predicate(where)
            rows = [row for row in rows if holds(row.value) is True]
        found = list(rows)
        if found:
            self._matched.setdefault(id(statement), statement)
        return found

    def _own(self, statement: Statement, *key: object) -> None:
        self._owners[key] = statement

    def _refuse(self, span: Span, message: str, hint: str = "", others: tuple[Place, ...] = ()) -> None:
        problem = Problem(span=span, message=message, hint=hint, others=others)
        # The same of a further row says nothing new.
        if all((span, hint, others) != (known.span, known.hint, known.others) for known in self._problems):
            self._problems.append(problem)

    def _refuse_on(self, statement: Statement) -> None:
        on = getattr(statement, "on", None)
        if on is not None and not isinstance(statement, _TAKES_ON):
            self._refuse(
                statement.span,
                "ON limits REDUCE to some groups of devices; what this statement decides must be the same in every "
                "group",
                "Leave ON out, or write WHERE with stage.",
            )

    def _refuse_stage_axis(self, statement: Statement) -> None:
        """Ranks along the axis of stages hold other layers: they share no tensor."""
        is_pipeline = isinstance(statement, SplitStatement) and any(
            dim.text == "layers" for dim in statement.dims
        )
        if is_pipeline or not isinstance(statement, _SHARING):
            return
        for axis in statement.axes:
            if axis.text in self._stage_axes:
                self._refuse(
                    axis.span,
                    f"ranks along {axis.text!r} hold the layers of other stages: there is nothing to share over it",
                    "Name another axis.",
                )

    def _without_match(self, statement: Statement, tables: Sequence[Table], what: str) -> None:
        """Refuse a statement that matched nothing, unless it says IF ANY."""
        is_refused = len(self._problems) > self._num_before
        if is_refused or id(statement) in self._matched or getattr(statement, "if_any", False):
            return
        kinds = sorted({row.kind for table in tables for row in self._rows[table].values()})
        names = " and ".join(table.value for table in tables)
        self._refuse(
            statement.span,
            f"no row of {names} {what}",
            f"kinds there: {', '.join(kinds)}.  Write IF ANY at the end if that is meant.",
        )

    def _without_effect(self) -> Iterator[Problem]:
        effective = {id(statement) for statement in self._owners.values()}
        for key, statement in self._matched.items():
            if key not in effective:
                yield Problem(
                    span=statement.span,
                    message="this statement has no effect: later ones decide the same for every row it matches",
                )

    # One method a verb.

    def _default_batch(self) -> None:
        """The prelude's SPLIT batch: over the axes that no other line splits or places anything over."""
        named = [
            statement
            for statement in self._program.statements
            if isinstance(statement, SplitStatement) and any(dim.text == "batch" for dim in statement.dims)
        ]
        if named:
            return
        used = {
            axis.text
            for statement in self._program.statements
            if isinstance(statement, SplitStatement)
            for axis in statement.axes
        }
        used |= {
            statement.axis.text
            for statement in self._program.statements
            if isinstance(statement, PlaceStatement)
        }
        for axis, _ in self._mesh.axes:
            if axis not in used:
                self._cut_batch(axis, None)

    def _cut_batch(self, axis: Axis, line: Span | None) -> None:
        self._batch_axes[axis] = Decision("batch", line)
        for row in self._rows[Table.ACTIVATIONS].values():
            if "batch" in row.dims:
                self._splits[Table.ACTIVATIONS].setdefault(row.name, {})[axis] = Decision("batch", line)

    def _bind_mesh(self, statement: MeshStatement) -> None:
        for axis in statement.axes:
            if axis.within is None:
                continue
            level = axis.within.text
            for group in groups(self._mesh, [axis.axis.text]):
                places = {self._devices[rank].value(level) for rank in group}
                if len(places) > 1 or None in places:
                    self._refuse(
                        axis.span,
                        f"axis {axis.axis.text!r} leaves its {level}: ranks {group[0]} to {group[-1]} stand on "
                        f"{_listed_places(level, places)}",
                        f"Make {axis.axis.text} smaller, or move it to the end of the mesh.",
                    )
                    break

    def _bind_split(self, statement: SplitStatement) -> None:
        axes = [axis.text for axis in statement.axes]
        for dim in statement.dims:
            if dim.text == "layers":
                self._matched.setdefault(id(statement), statement)
                self._own(statement, "layers")
            elif dim.text == "batch":
                self._bind_batch(statement, axes)
            else:
                self._bind_dim(statement, dim.text, axes)

    def _bind_batch(self, statement: SplitStatement, axes: Sequence[Axis]) -> None:
        self._matched.setdefault(id(statement), statement)
        if statement.table is not None or statement.where is not None:
            self._refuse(
                statement.span,
                "the batch is split for every activation alike",
                "Leave OF and WHERE out.",
            )
        for axis in axes:
            if axis in self._batch_axes:
                line = self._batch_axes[axis].line
                assert line is not None, "the prelude splits the batch only if no statement does"
                others = (Place(span=line, note="the first split is here"),)
                self._refuse(statement.span, f"'batch' is split over {axis!r} twice", others=others)
            self._cut_batch(axis, statement.span)
            self._own(statement, "split", Table.ACTIVATIONS, "batch", axis)

    def _bind_dim(self, statement: SplitStatement, dim: str, axes: Sequence[Axis]) -> None:
        tables = self._split_tables(statement)
        if len(axes) > 1 and dim not in _NESTING:
            self._refuse(statement.span, f"'{dim}' is split over {len(axes)} axes; it takes one")
            return
        found = False
        for table in tables:
            for companion in _COMPANIONS.get(dim, (dim,)):
                for row in self._matching(statement, table, statement.where, companion):
                    found = True
                    for axis in axes:
                        self._cut(statement, row, axis, companion)
        if dim == "sequence":
            for axis in axes:
                self._sequence_axes.setdefault(axis, statement.span)
        if dim == "sequence" and statement.table is None:
            for axis in axes:
                self._attention[axis] = Decision(
                    statement.using.name.text if statement.using else "allgather", statement.span
                )
        elif statement.using is not None:
            self._refuse(
                statement.using.span,
                f"USING says how attention meets a split sequence; {dim!r} takes none",
                "Leave USING out.",
            )
        if not found and tables and not statement.if_any:
            names = " and ".join(table.value for table in tables)
            self._refuse(
                statement.span,
                f"no row of {names} with dim {dim!r} matches",
                f"dims there: {', '.join(self._dims(tables))}.  Write IF ANY at the end if that is meant.",
            )

    def _split_tables(self, statement: SplitStatement) -> tuple[Table, ...]:
        if statement.table is None:
            return (Table.PARAMS, Table.ACTIVATIONS)
        table = Table(statement.table.text)
        if table in (Table.PARAMS, Table.ACTIVATIONS):
            return (table,)
        self._refuse(
            statement.table.span,
            f"SPLIT cuts computation: params and activations; {table.value} are laid out as their parameter",
            f"To keep {table.value} in pieces write STORE {table.value} OVER axis.",
        )
        return ()

    def _dims(self, tables: Iterable[Table]) -> list[str]:
        return sorted({dim for table in tables for row in self._rows[table].values() for dim in row.dims})

    def _cut(self, statement: SplitStatement, row: Row, axis: Axis, dim: str) -> None:
        cuts = self._splits[row.table].setdefault(row.name, {})
        earlier = cuts.get(axis)
        if earlier is not None and earlier.value == "batch" != dim:
            others = (Place(span=earlier.line, note="the batch is split here"),) if earlier.line else ()
            self._refuse(
                statement.span,
                f"{row.name!r} would be cut twice over {axis!r}: along batch and along {dim}",
                "Give one of the two an axis of its own.",
                others,
            )
            return
        if earlier is not None and earlier.line is statement.span and earlier.value != dim:
            self._refuse(
                statement.span,
                f"{row.name!r} has the dims {earlier.value} and {dim}; over one axis {axis!r} only one can be cut",
                "Say which with OF and WHERE.",
            )
            return
        # Taken out first: a cut that is decided again comes after those that stand.
        cuts.pop(axis, None)
        cuts[axis] = Decision(dim, statement.span)
        self._own(statement, "split", row.table, row.name, axis)

    def _check_cuts(self) -> None:
        """Refuse a dim that two axes cut, where only one can."""
        for table, by_name in self._splits.items():
            for name, cuts in by_name.items():
                first: dict[str, Axis] = {}
                for axis, decision in cuts.items():
                    other = first.setdefault(decision.value, axis)
                    if other != axis and (decision.value not in _NESTING or table is Table.PARAMS):
                        self._refuse_second_cut(name, decision, cuts[other], axis, other)
                        return

    def _check_idle_axes(self) -> None:
        """Refuse an axis along which all devices would do the same."""
        used = {*self._batch_axes, *self._stage_axes}
        for by_table in (self._splits, self._stored):
            used |= {axis for by_name in by_table.values() for axes in by_name.values() for axis in axes}
        used |= {axis for axes in self._averages.values() for axis in axes}
        for statement in self._program.statements:
            for axis in statement.axes if isinstance(statement, MeshStatement) else ():
                name = axis.axis.text
                if name not in used and self._mesh.size(name) > 1:
                    self._refuse(
                        axis.span,
                        f"no statement splits anything over {name!r}: its {self._mesh.size(name)} devices would all do the "
                        "same",
                        f"Add SPLIT batch OVER {name}, or take the axis out of the mesh.",
                    )

    def _refuse_second_cut(
        self, name: Name, decision: Decision[str], earlier: Decision[str], axis: Axis, other: Axis
    ) -> None:
        span = decision.line or earlier.line
        assert span is not None, "the prelude cuts nothing twice"
        others = (Place(span=earlier.line, note="the first split is here"),) if earlier.line else ()
        self._refuse(
            span,
            f"{decision.value!r} of {name!r} is split twice: over {other!r} and over {axis!r}",
            "Keep one of the two.",
            others,
        )

    def _bind_place(self, statement: PlaceStatement) -> None:
        # Stages are settled before rows are bound.
        self._matched.setdefault(id(statement), statement)
        self._own(statement, "layers", id(statement))

    def _bind_store(self, statement: StoreStatement) -> None:
        tables = [Table(table.text) for table in statement.tables]
        for name, table in zip(statement.tables, tables, strict=True):
            if table not in (Table.PARAMS, Table.GRADS, Table.STATES):
                self._refuse(name.span, f"STORE keeps params, grads and states in pieces, not {table.value}")
                continue
            for row in self._matching(statement, table, statement.where):
                for axis in (axis.text for axis in statement.axes):
                    self._stored[table].setdefault(row.name, {})[axis] = Decision(True, statement.span)
                    self._own(statement, "store", table, row.name, axis)
        self._without_match(statement, tables, "matches")

    def _drop_needless_storage(self) -> None:
        """What is cut over an axis lies in different pieces there already, whichever line comes first."""
        for table, by_name in self._stored.items():
            for name, axes in by_name.items():
                for axis in axes.keys() & self._splits[Table.PARAMS].get(name, {}).keys():
                    del axes[axis]
                    self._owners.pop(("store", table, name, axis), None)

    def _bind_reduce(self, statement: ReduceStatement) -> None:
        if Table(statement.table.text) is not Table.GRADS:
            self._refuse(
                statement.table.span,
                f"REDUCE sums gradients; {statement.table.text} are not summands",
                "Write REDUCE grads OVER axis.",
            )
            return
        repeated = {axis.text for axis in statement.axes}
        if len(repeated) < len(statement.axes):
            self._refuse(statement.span, "gradients are summed over one axis twice", "Name each axis once.")
        for row in self._matching(statement, Table.GRADS, statement.where):
            self._reducing.setdefault(row.name, []).append(statement)
        self._without_match(statement, [Table.GRADS], "matches")

    def _bind_average(self, statement: AverageStatement) -> None:
        if Table(statement.table.text) is not Table.PARAMS:
            self._refuse(statement.table.span, "AVERAGE takes params", "Write AVERAGE params OVER axis.")
            return
        outer = statement.using.name.text if statement.using else "mean"
        arguments = statement.using.arguments if statement.using else ()
        averaging = Averaging(
            every=statement.every,
            outer=outer,
            momentum=float(arguments[0].value) if arguments else 0.0,
            wire=statement.wire.text if statement.wire else None,
            compress=statement.compress.name.text if statement.compress else "none",
            compress_argument=first_number(statement.compress),
            line=statement.span,
        )
        for row in self._matching(statement, Table.PARAMS, statement.where):
            for axis in statement.axes:
                self._averages.setdefault(row.name, {})[axis.text] = averaging
                self._own(statement, "average", row.name, axis.text)
        self._without_match(statement, [Table.PARAMS], "matches")

    def _bind_recompute(self, statement: RecomputeStatement) -> None:
        table = Table(statement.table.text)
        if table not in (Table.ACTIVATIONS, Table.LAYERS):
            self._refuse(statement.table.span, f"RECOMPUTE takes activations or layers, not {table.value}")
            return
        matched = self._matching(statement, table, statement.where)
        layers = {row.layer for row in matched} if table is Table.LAYERS else set()
        for row in self._rows[Table.ACTIVATIONS].values() if layers else matched:
            if not layers or row.layer in layers:
                self._recomputed[row.name] = statement.span
                self._own(statement, "recompute", row.name)
        self._without_match(statement, [table], "matches")

    def _bind_offload(self, statement: OffloadStatement) -> None:
        tables = [Table(table.text) for table in statement.tables]
        for table in tables:
            for row in self._matching(statement, table, statement.where):
                self._offloaded[table][row.name] = statement.span
                self._own(statement, "offload", table, row.name)
        self._without_match(statement, tables, "matches")

    def _bind_keep(self, statement: KeepStatement) -> None:
        tables = [Table(table.text) for table in statement.tables]
        for name, table in zip(statement.tables, tables, strict=True):
            if table not in (Table.PARAMS, Table.GRADS, Table.STATES):
                self._refuse(
                    name.span,
                    f"KEEP says how params, grads and states are stored; {table.value} have the type that they are "
                    "computed in",
                    "Write COMPUTE layers IN type.",
                )
                continue
            for row in self._matching(statement, table, statement.where):
                self._kept[table][row.name] = Decision(statement.dtype.text, statement.span)
                self._own(statement, "keep", table, row.name)
        self._without_match(statement, tables, "matches")

    def _bind_compute(self, statement: ComputeStatement) -> None:
        if Table(statement.table.text) is not Table.LAYERS:
            self._refuse(statement.table.span, "COMPUTE takes layers", "Write COMPUTE layers IN type.")
            return
        for row in self._matching(statement, Table.LAYERS, statement.where):
            assert row.layer is not None, "rows of layers are layers"
            self._computed[row.layer] = Decision(statement.dtype.text, statement.span)
            self._own(statement, "compute", row.layer)
        self._without_match(statement, [Table.LAYERS], "matches")

    def _bind_seal(self, statement: SealStatement) -> None:
        tables = [Table(name.text) for name in statement.tables]
        for table in tables:
            for row in self._matching(statement, table, statement.where):
                for axis in statement.axes:
                    self._sealed[table].setdefault(row.name, {})[axis.text] = statement.span
                    self._own(statement, "seal", table, row.name, axis.text)
        self._without_match(statement, tables, "matches")

    # Sums.

    def _reductions(self) -> dict[Name, dict[Axis, ByGroups]]:
        """For each row that a REDUCE names, by axis and by equal groups, how it is summed."""
        known: dict[tuple[int, ...], dict[Axis, ByGroups]] = {}
        found = {}
        for name, statements in self._reducing.items():
            key = tuple(id(statement) for statement in statements)
            if key not in known:
                known[key] = fold_reductions(statements, self._mesh, self._devices)
            for axis, by_groups in known[key].items():
                for statement in deciding_statements(by_groups.values(), statements):
                    self._own(statement, "reduce", name, axis, id(statement))
            found[name] = known[key]
        return found


def _listed_places(level: str, places: Iterable[object]) -> str:
    known = sorted(str(place) for place in places if place is not None)
    return f"{level}s {', '.join(known)}" if known else f"a cluster that does not tell its {level}s"


_BINDERS: Mapping[type, Callable[..., None]] = {
    MeshStatement: _Binder._bind_mesh,
    SplitStatement: _Binder._bind_split,
    PlaceStatement: _Binder._bind_place,
    StoreStatement: _Binder._bind_store,
    ReduceStatement: _Binder._bind_reduce,
    AverageStatement: _Binder._bind_average,
    RecomputeStatement: _Binder._bind_recompute,
    OffloadStatement: _Binder._bind_offload,
    KeepStatement: _Binder._bind_keep,
    ComputeStatement: _Binder._bind_compute,
    SealStatement: _Binder._bind_seal,
}
