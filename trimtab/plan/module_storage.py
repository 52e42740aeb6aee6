"""How do the tensors of a class of the user's own lie on ranks that split the batch?

Operators of such a class are not known, so every rank computes the whole of it, on samples of its own. Its parameters,
gradients and optimizer states may be stored in pieces all the same: each tensor flat, in equal pieces whose length is a
multiple of 16 elements, one for each rank.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab.catalog import Cluster, ClusterError
from trimtab.plan.binding import bind
from trimtab.plan.bound import Bound
from trimtab.plan.devices import devices_of
from trimtab.plan.layout import BYTES_PER_ELEMENT, TAIL, piece_elements
from trimtab.plan.parameters import TABLES
from trimtab.plan.shares import assign_shares, own_blocks, shares_of
from trimtab.plan.tables import Row, Table
from trimtab.spec import Mesh, Problem, Program, StrategyError
from trimtab.spec.language import MeshStatement
from trimtab.terms import Span

ROOT = ""
"""The unit of all parameters that belong to no layer alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredParameter:
    """One parameter of the class, tied ones once.

    Args:
        name: As in the state dict.
        numel: Elements.
        unit: Path of the layer whose parameters are gathered together with it; ``ROOT`` outside of layers.
        is_trained: Whether it has a gradient.
        stored: The tables of which each rank keeps a piece.
    """

    name: str
    numel: int
    unit: str
    is_trained: bool
    stored: frozenset[Table]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleStorage:
    """The pieces of a class.

    Args:
        num_ranks: That hold a piece each.
        parameters: In the order of the class.
        lines: By table, the first statement that stores anything of it.
        warnings: Statements without effect.
    """

    num_ranks: int
    parameters: tuple[StoredParameter, ...]
    lines: Mapping[Table, Span]
    warnings: tuple[Problem, ...] = ()

    def piece(self, parameter: StoredParameter) -> int:
        """Elements of each piece, padding included."""
        return piece_elements(parameter.numel, self.num_ranks)

    def units(self) -> tuple[str, ...]:
        """Units in the order of the class, the one outside of layers last."""
        found = dict.fromkeys(parameter.unit for parameter in self.parameters)
        return (*(unit for unit in found if unit != ROOT), *(unit for unit in found if unit == ROOT))

    def keeps_in_pieces(self, table: Table) -> bool:
        """Whether anything of a table is stored in pieces."""
        return any(table in parameter.stored for parameter in self.parameters)

    def gathered_elements(self) -> int:
        """Elements of stored parameters that are whole at once: those outside of layers, and of the largest layer."""
        by_unit = dict.fromkeys(self.units(), 0)
        for parameter in self.parameters:
            if Table.PARAMS in parameter.stored:
                by_unit[parameter.unit] += self.piece(parameter) * self.num_ranks
        outside = by_unit.pop(ROOT, 0)
        return outside + max(by_unit.values(), default=0)

    def held_elements(self, table: Table) -> int:
        """Elements of a table that a rank keeps: of gradients while a step lasts, of states for each of the optimizer's."""
        trained = (p for p in self.parameters if p.is_trained or table is not Table.GRADS)
        return sum(self.piece(p) if table in p.stored else p.numel for p in trained)


def storage_of(
    program: Program,
    rows: Iterable[Row],
    *,
    mesh: Mesh,
    cluster: Cluster,
    units: Mapping[str, str],
) -> ModuleStorage:
    """How a program stores the rows of a class.

    Args:
        program: It says nothing that a class cannot be given; see ``unsupported_beside_class``.
        rows: Of all tables.
        mesh: Resolved.
        cluster: Where the ranks stand.
        units: Of each parameter.

    Raises: StrategyError with what cannot hold, at the line.
    """
    try:
        devices = devices_of(cluster, mesh.num_devices)
    except ClusterError as error:
        span = program.statements[0].span
        raise StrategyError([Problem(span=span, message=str(error))], program.documents) from error
    bound = bind(program, mesh=mesh, rows=rows, devices=devices)
    problems = [*_idle_axes(program, bound), *_stored_over_some(bound)]
    if problems:
        raise StrategyError(problems, program.documents)
    trained = bound.rows[Table.GRADS]
    parameters = tuple(
        StoredParameter(
            name=name,
            numel=row.numel,
            unit=units[name],
            is_trained=name in trained,
            stored=frozenset(table for table in TABLES if _axes(bound, table, name)),
        )
        for name, row in bound.rows[Table.PARAMS].items()
    )
    return ModuleStorage(
        num_ranks=mesh.num_devices, parameters=parameters, lines=_lines(bound), warnings=bound.warnings
    )


def _axes(bound: Bound, table: Table, name: str) -> Sequence[str]:
    """Axes over which a tensor is stored; gradients and states lie as their parameter does where no line says so."""
    found = bound.stored[table].get(name)
    if found is None:
        found = bound.stored[Table.PARAMS].get(name, {})
    return tuple(found)


def _lines(bound: Bound) -> Mapping[Table, Span]:
    found: dict[Table, Span] = {}
    for table in TABLES:
        for axes in bound.stored[table].values():
            lines = [decision.line for decision in axes.values() if decision.line is not None]
            if lines:
                found.setdefault(table, lines[0])
    return found


def _idle_axes(program: Program, bound: Bound) -> Iterator[Problem]:
    """Axes along which ranks would compute the same samples: only the batch of a class can be split."""
    for statement in program.statements:
        for sized in statement.axes if isinstance(statement, MeshStatement) else ():
            axis = sized.axis.text
            if bound.mesh.size(axis) > 1 and axis not in bound.batch_axes:
                yield Problem(
                    span=sized.span,
                    message=f"ranks along {axis!r} would all compute the same samples: of a class of your own only the "
                    "batch is split",
                    hint=f"Add SPLIT batch OVER {axis}, or take the axis out of the mesh.",
                )


def _stored_over_some(bound: Bound) -> Iterator[Problem]:
    """Statements that store over some of the axes of the batch only, once each."""
    wanted = {axis for axis in bound.batch_axes if bound.mesh.size(axis) > 1}
    told: set[Span] = set()
    for by_name in bound.stored.values():
        for axes in by_name.values():
            missing = sorted(wanted - axes.keys())
            line = next((decision.line for decision in axes.values() if decision.line is not None), None)
            if not missing or line is None or line in told:
                continue
            told.add(line)
            yield Problem(
                span=line,
                message=f"tensors of a class of your own are stored over all ranks: {', '.join(missing)} is missing",
                hint=f"Write OVER {', '.join(bound.batch_axes)}.",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepShape:
    """What the sizes of a step follow from, besides the storage.

    Args:
        turns: Microbatches that the busiest rank computes.
        subtrees: Sums of shares that the busiest rank sends where gradients are whole.
        num_parts: Shares of the batch.
    """

    turns: int
    subtrees: int
    num_parts: int

    @classmethod
    def of(cls, *, batch: int, microbatch: int, num_parts: int, num_ranks: int) -> "StepShape":
        """That of a step whose parts lie as they do when nothing is in flight."""
        owners = assign_shares(num_parts, range(num_ranks))
        owned = [shares_of(rank, owners) for rank in range(num_ranks)]
        each, more = divmod(batch, num_parts)
        turns = [sum(-(-(each + (share < more)) // microbatch) for share in shares) for shares in owned]
        subtrees = [len(own_blocks(shares, num_parts)) for shares in owned]
        return cls(turns=max(turns), subtrees=max(subtrees), num_parts=num_parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleTransfer:
    """What the busiest rank sends in a step for one purpose.

    Args:
        what: In a few words.
        operation: Of the backend.
        times: How often in a step.
        sent_bytes: In all of them.
    """

    what: str
    operation: str
    times: int
    sent_bytes: int


WORD_LIMBS = 21
"""Integers of the norm that ranks agree on; see ``BinnedSum`` of the runtime."""


def transfers_of(storage: ModuleStorage, shape: StepShape) -> tuple[ModuleTransfer, ...]:
    """What a step sends, by formula.

    A gather and a scatter of n pieces send (n - 1) pieces of each rank. Layers are gathered for the forward and again
    for the backward pass of a microbatch, what is outside of layers once.
    """
    peers = storage.num_ranks - 1
    trained = [p for p in storage.parameters if p.is_trained]

    def row(parameters: Iterable[StoredParameter]) -> int:
        return peers * BYTES_PER_ELEMENT * sum(storage.piece(parameter) for parameter in parameters)

    found = []
    for unit in storage.units():
        params = [p for p in storage.parameters if p.unit == unit and Table.PARAMS in p.stored]
        times = shape.turns * (1 if unit == ROOT else 2)
        found.append(("gather parameters before use", "all_gather", times if params else 0, row(params)))
        grads = [p for p in trained if p.unit == unit and Table.GRADS in p.stored]
        found.append(
            ("hand gradients to who keeps them", "all_to_all", shape.turns if grads else 0, row(grads))
        )
        spread = [p for p in storage.parameters if p.unit == unit and _is_spread(p)]
        found.append(("give updated parameters to all", "all_gather", 1 if spread else 0, row(spread)))
        whole = [p for p in trained if p.unit == unit and Table.STATES not in p.stored]
        found.append(("give summed gradients to all", "all_gather", 1 if whole else 0, row(whole)))
    apart = [p for p in trained if Table.GRADS not in p.stored]
    found.append(("sum gradients", "all_to_all", 1 if apart else 0, shape.subtrees * row(apart)))
    numbers = -(-(shape.num_parts * TAIL + WORD_LIMBS) // storage.num_ranks)
    found.append(("agree on loss and norm", "all_reduce", 1, 2 * peers * numbers * 8))
    return tuple(_merged(found))


def _is_spread(parameter: StoredParameter) -> bool:
    """Whether ranks update pieces of it and keep all of it."""
    return Table.STATES in parameter.stored and Table.PARAMS not in parameter.stored


def _merged(found: Iterable[tuple[str, str, int, int]]) -> Iterator[ModuleTransfer]:
    """One for each purpose, in the order of a step."""
    by_what: dict[tuple[str, str], tuple[int, int]] = {}
    for what, operation, times, each in found:
        known_times, known_bytes = by_what.get((what, operation), (0, 0))
        by_what[what, operation] = (known_times + times, known_bytes + times * each)
    for (what, operation), (times, sent) in by_what.items():
        if times:
            yield ModuleTransfer(what=what, operation=operation, times=times, sent_bytes=sent)
