"""All ranks of a plan at once: each runs the plan's operators on the pieces that it holds, and sends what they send."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from symbolic_integers import Integers
from symbolic_local import Local, attend, attend_grad, compute
from symbolic_pieces import (
    Array,
    Extent,
    MisfitError,
    Piece,
    chunks_along,
    chunks_of_storage,
    join_along,
    join_storage,
    restrict,
)
from symbolic_plan import COLLECTIVES, Operator, Plan, Transfer, Value
from symbolic_wires import BYTES_OF, Line, Route, Sent, Wires, exchange

Held = dict[int, Piece]
"""What the ranks hold of one value, by rank; a rank that is not there holds nothing of it."""


@dataclass(kw_only=True, slots=True)
class Scope:
    """What operators read and write: the values of one block at work, or of the update.

    Args:
        block: Name of the block; ``update``.
        declared: By name.
        ranks: That run it.
        parameters: The pieces of a parameter, by its name in the block, as operators take it.
        weights: What each token of the microbatch counts, [B, S]; empty in the update.
        phase: Of the step.
        held: By name.
        added_up: The gradients that microbatches before this one have left, by name.
    """

    block: str
    declared: Mapping[str, Value]
    ranks: tuple[int, ...]
    parameters: Callable[[str], Held]
    weights: Array
    phase: str = ""
    held: dict[str, Held] = field(default_factory=dict)
    added_up: dict[str, Held] = field(default_factory=dict)


class Ranks:
    """Runs operators.

    Args:
        plan: Whose ranks they are.
        integers: Arithmetic.

    Attributes:
        plan, mesh, integers: As given.
        wires: What was sent.
        misplaced: The first value that lay otherwise than declared, in a sentence; None if there was none.
    """

    def __init__(self, plan: Plan, integers: Integers) -> None:
        self.wires = Wires()
        self.misplaced: str | None = None
        self.plan = plan
        self.mesh = plan.mesh
        self.integers = integers

    def run(self, operators: Iterable[Operator], scope: Scope) -> None:
        """Operators in order.

        Raises: MisfitError or ValueError if pieces cannot be put together or are missing.
        """
        for operator in operators:
            for name in operator.inputs:
                if name not in scope.held:
                    raise MisfitError(f"{operator.kind} reads {name!r}, which no rank has")
            if operator.kind in COLLECTIVES:
                self._collective(operator, scope)
            elif operator.kind == "slice":
                self._slice(operator, scope)
            elif operator.kind == "accumulate":
                self._accumulate(operator, scope)
            elif (
                operator.kind == "set_apart"
            ):  # What was a summand is a gradient of its own; the numbers stay.
                scope.held[operator.outputs[0]] = scope.held[operator.inputs[0]]
            elif operator.kind == "norm_square":
                self._norm_square(operator, scope)
            else:
                self._local(operator, scope)
            self._look(operator, scope)

    def hand_over(self, stream: Held, value: Value, phase: str, *, source: int, target: int) -> Held:
        """The residual stream, or its gradient, from a stage to a neighbour; nothing is sent within a rank."""
        axis = self.plan.pipeline_axis
        if axis is None or source == target:
            return stream
        found: Held = {}
        for group in self.mesh.groups([axis]):
            pair = tuple(
                rank for place in (source, target) for rank in group if self.plan.place(rank) == place
            )
            what = Sent("pipeline", phase, "send", ("residual stream",), (axis,), "native")
            line = self.wires.line(what, pair, BYTES_OF[value.dtype], only_first_sends=True)
            piece = stream[pair[0]]
            found[pair[1]] = Piece(piece.extent, line.send(0, 1, piece.array))
        return found

    def _look(self, operator: Operator, scope: Scope) -> None:
        """Note the first output that does not have the elements that its layout says."""
        for name in operator.outputs:
            declared = self.mesh.extents(scope.declared[name])
            for rank, piece in scope.held[name].items():
                if piece.extent != declared[rank] and self.misplaced is None:
                    self.misplaced = (
                        f"{name!r} of {scope.block}: rank {rank} has other elements than its layout says"
                    )

    # Alone.

    def _local(self, operator: Operator, scope: Scope) -> None:
        outputs: list[Held] = [{} for _ in operator.outputs]
        declared = [self.mesh.extents(scope.declared[name]) for name in operator.outputs]
        inputs = [scope.held[name] for name in operator.inputs]
        parameters = (
            [scope.parameters(name) for name in operator.parameters] if scope.block != "update" else []
        )
        for rank in self._holders(operator, scope):
            local = Local(
                operator=operator,
                inputs=[held[rank] for held in inputs if rank in held],
                parameters=[held[rank] for held in parameters],
                declared=[extents[rank] for extents in declared],
                integers=self.integers,
                network=self.plan.network,
                weights=scope.weights,
            )
            for held, piece in zip(outputs, compute(local), strict=True):
                held[rank] = piece
        scope.held.update(zip(operator.outputs, outputs, strict=True))

    def _holders(self, operator: Operator, scope: Scope) -> list[int]:
        """The ranks that have what an operator reads; of a sum of uses one is enough."""
        enough = any if operator.kind == "sum" else all
        held = [scope.held[name] for name in operator.inputs]
        return [rank for rank in scope.ranks if enough(rank in pieces for pieces in held)]

    def _slice(self, operator: Operator, scope: Scope) -> None:
        for name, output in zip(operator.inputs, operator.outputs, strict=True):
            value = scope.declared[output]
            axes = _in_cutting_order(operator.cuts, value)
            found: Held = {}
            for rank, piece in scope.held[name].items():
                for axis in axes:
                    index, size = self.mesh.coordinates[rank][axis], self.mesh.sizes[axis]
                    piece = _chunks(piece, operator.dim_to, value, size)[index]
                found[rank] = piece
            scope.held[output] = found

    def _accumulate(self, operator: Operator, scope: Scope) -> None:
        """The gradient of this microbatch joins those before it."""
        (name,), (output,) = operator.inputs, operator.outputs
        before = scope.added_up.get(output)
        found = dict(scope.held[name])
        if before is not None:
            for rank, piece in found.items():
                added = restrict(before[rank], piece.extent)
                found[rank] = Piece(piece.extent, self.integers.sum(piece.array, added.array))
        scope.added_up[output] = scope.held[output] = found

    def _norm_square(self, operator: Operator, scope: Scope) -> None:
        """Each rank's part of the sum of squares: of equal elements those of the first rank count."""
        total = dict.fromkeys(scope.ranks, 0)
        modulus = self.integers.modulus
        for name in operator.inputs:
            value, parameter = scope.declared[name], self.plan.parameter_of_gradient(name)
            first_stage = self.plan.ranks_at(parameter.stages[0])
            for rank, piece in scope.held[name].items():
                if rank in first_stage and self._counts(rank, value):
                    total[rank] += int((piece.array * piece.array % modulus).sum())
        pieces = {rank: Piece(Extent(()), np.asarray(number % modulus)) for rank, number in total.items()}
        scope.held[operator.outputs[0]] = pieces

    def _counts(self, rank: int, value: Value) -> bool:
        """Whether a rank is the first of those that hold the same elements."""
        differing = {axis for axis, _, _ in value.placements} | {self.plan.pipeline_axis}
        return all(at == 0 for axis, at in self.mesh.coordinates[rank].items() if axis not in differing)

    # Together.

    def _collective(self, operator: Operator, scope: Scope) -> None:
        assert operator.transfer is not None, "collectives are sent"
        groups = self.mesh.groups(operator.transfer.axes)
        results: list[Held] = [dict(scope.held[name]) for name in operator.inputs]
        outputs: list[Held] = [{} for _ in operator.outputs]
        for group, transfer in zip(groups, operator.ways(len(groups)), strict=True):
            members = self._taking_part(group, transfer, operator, scope)
            if not members:
                continue
            gang = _Gang(self, operator, scope, transfer, members)
            for held, pieces in zip(outputs, _TOGETHER[operator.kind](gang), strict=True):
                held.update(zip(members, pieces, strict=True))
        if operator.kind in ("all_reduce", "average"):  # Who does not take part goes on with what it has.
            outputs = [{**before, **after} for before, after in zip(results, outputs, strict=True)]
        scope.held.update(zip(operator.outputs, outputs, strict=True))

    def _taking_part(
        self, group: Sequence[int], transfer: Transfer, operator: Operator, scope: Scope
    ) -> tuple[int, ...]:
        members = [rank for rank in group if all(rank in scope.held[name] for name in operator.inputs)]
        if transfer.stages:
            wanted = self.plan.ranks_at(*transfer.stages)
            members = [rank for rank in members if rank in wanted]
        return tuple(members)


class _Gang:
    """The ranks of one process group in one run of a collective."""

    def __init__(
        self, ranks: Ranks, operator: Operator, scope: Scope, transfer: Transfer, members: tuple[int, ...]
    ) -> None:
        self.operator = operator
        self.integers = ranks.integers
        self.network: Mapping[str, Any] = ranks.plan.network
        self.inputs = [[scope.held[name][rank] for rank in members] for name in operator.inputs]
        self.results = [scope.declared[name] for name in operator.outputs]
        self.size = len(members)
        self.axes = transfer.axes
        self.combine = np.maximum if transfer.operation == "max" else self.integers.sum
        self._ranks, self._scope, self._transfer, self._members = ranks, scope, transfer, members

    def line(self) -> Line:
        """The wires of this run."""
        what = Sent(
            self._scope.block,
            self._scope.phase,
            self.operator.kind,
            self.operator.inputs,
            self._transfer.axes,
            self._transfer.route,
        )
        return self._ranks.wires.line(what, self._members, BYTES_OF[self._transfer.bytes_as])

    def route(self) -> Route:
        """How they send."""
        levels = self._transfer.levels or ("node",)
        if self._transfer.route != "hierarchical":
            return Route(self._transfer.route)
        return Route("hierarchical", [self._ranks.plan.places_of(self._members, level) for level in levels])

    def owners(self, value: Value, kind: str) -> list[int]:
        """For each member which of the pieces that these axes cut is its own."""
        axes = _in_cutting_order(self.axes, value, kind)
        found = [self._ranks.mesh.index(rank, axes) for rank in self._members]
        # Where not all ranks of the axes take part, those that do are counted.
        return [sorted(found).index(index) for index in found]

    def cut(self, piece: Piece, value: Value) -> list[Piece]:
        """A piece in as many as there are members, each at the place of the member that it is meant for."""
        dim = self.operator.dim_to
        kind = "stored" if dim == "stored" else "split"
        pieces = [piece]
        for size in self._cuts(value, kind):
            pieces = [part for whole in pieces for part in _chunks(whole, dim, value, size)]
        return [pieces[owner] for owner in self.owners(value, kind)]

    def _cuts(self, value: Value, kind: str) -> list[int]:
        """Into how many pieces each axis cuts, the first cut first."""
        sizes = self._ranks.mesh.sizes
        found = [sizes[axis] for axis in _in_cutting_order(self.axes, value, kind)]
        # Where not all ranks of the axes take part, those that do share alike.
        return found if math.prod(found) == self.size else [self.size]


def _in_cutting_order(axes: Sequence[str], value: Value, kind: str | None = None) -> list[str]:
    """The axes in the order in which they cut a value; those that do not cut it come last."""
    order = [axis for axis, found, _ in value.placements if kind in (None, found)]
    return sorted(axes, key=lambda axis: order.index(axis) if axis in order else len(order))


def _chunks(piece: Piece, dim: str | None, value: Value, pieces: int) -> list[Piece]:
    if dim == "stored":
        return chunks_of_storage(piece, pieces)
    assert dim is not None, "what is cut is cut along a dim"
    return chunks_along(piece, value.dims.index(dim), pieces)


def _flat(pieces: Iterable[Piece]) -> Array:
    return np.concatenate([piece.array.reshape(-1) for piece in pieces])


def _unpacked(flat: Array, like: Sequence[Piece]) -> list[Piece]:
    """Several tensors out of one array, with the extents and shapes of others."""
    found, start = [], 0
    for piece in like:
        stop = start + piece.array.size
        found.append(Piece(piece.extent, flat[start:stop].reshape(piece.array.shape)))
        start = stop
    return found


def _by_value(by_member: Sequence[Sequence[Piece]]) -> list[list[Piece]]:
    return [list(pieces) for pieces in zip(*by_member, strict=True)]


def _all_reduce(gang: _Gang) -> list[list[Piece]]:
    if gang.size == 1:
        return gang.inputs
    members = list(zip(*gang.inputs, strict=True))
    summed = gang.route().all_reduce(gang.line(), [_flat(pieces) for pieces in members], gang.combine)
    return _by_value([_unpacked(flat, pieces) for flat, pieces in zip(summed, members, strict=True)])


def _average(gang: _Gang) -> list[list[Piece]]:
    share = gang.integers.inverse(gang.size)
    return [
        [Piece(piece.extent, piece.array * share % gang.integers.modulus) for piece in pieces]
        for pieces in _all_reduce(gang)
    ]


def _reduce_scatter(gang: _Gang) -> list[list[Piece]]:
    """All tensors cut into a piece for each member; what is meant for one travels together."""
    by_member = []  # For each member, for each target, the pieces of all tensors.
    for pieces in zip(*gang.inputs, strict=True):
        chunks = [gang.cut(piece, value) for piece, value in zip(pieces, gang.results, strict=True)]
        by_member.append(_by_value(chunks))
    if gang.size == 1:
        return _by_value([by_member[0][0]])
    flat = [[_flat(pieces) for pieces in targets] for targets in by_member]
    summed = gang.route().reduce_scatter(gang.line(), flat, gang.combine)
    return _by_value([_unpacked(array, by_member[at][at]) for at, array in enumerate(summed)])


def _all_gather(gang: _Gang) -> list[list[Piece]]:
    members = list(zip(*gang.inputs, strict=True))
    flat = [_flat(pieces) for pieces in members]
    arrived = [flat] if gang.size == 1 else gang.route().all_gather(gang.line(), flat)
    by_member = []
    for rows in arrived:
        sources = [_unpacked(row, pieces) for row, pieces in zip(rows, members, strict=True)]
        by_member.append(
            [
                _joined(gang, [pieces[index] for pieces in sources], name, value)
                for index, (name, value) in enumerate(zip(gang.operator.inputs, gang.results, strict=True))
            ]
        )
    return _by_value(by_member)


def _joined(gang: _Gang, pieces: Sequence[Piece], name: str, value: Value) -> Piece:
    """Pieces in order of members, put together in order of cutting."""
    before = gang._scope.declared[name]
    kind = "split" if gang.operator.dim_from else "stored"
    owners = gang.owners(before, kind)
    ordered = [piece for _, piece in sorted(zip(owners, pieces, strict=True), key=lambda pair: pair[0])]
    declared = gang._ranks.mesh.extents(value)[gang._members[0]]
    if gang.operator.dim_from is None:
        return join_storage(ordered, declared)
    at = value.dims.index(gang.operator.dim_from)
    return join_along(ordered, at, len(declared.indices[at]))


def _all_to_all(gang: _Gang) -> list[list[Piece]]:
    (pieces,), (value,) = gang.inputs, gang.results
    operator = gang.operator
    assert operator.dim_from is not None, "an all-to-all takes a cut apart"
    at = value.dims.index(operator.dim_from)
    chunks = [_chunks(piece, operator.dim_to, value, gang.size) for piece in pieces]
    arrays = [[chunk.array for chunk in row] for row in chunks]
    arrived = arrays if gang.size == 1 else exchange(gang.line(), arrays)
    length = len(gang._ranks.mesh.extents(value)[gang._members[0]].indices[at])
    found = []
    for target, row in enumerate(arrived):
        parts = [Piece(chunks[source][target].extent, array) for source, array in enumerate(row)]
        found.append(join_along(parts, at, length))
    return [found]


def _ring_attention(gang: _Gang) -> list[list[Piece]]:
    """Keys and values go around; every rank adds what it sees to its outputs."""
    queries, keys, values = gang.inputs
    totals = [np.zeros_like(piece.array) for piece in queries]
    line = gang.line() if gang.size > 1 else None
    travelling: list[tuple[Piece, ...]] = list(zip(keys, values, strict=True))
    for hop in range(gang.size):
        for place, (k, v) in enumerate(travelling):
            seen = attend(gang.integers, gang.network, queries[place], k, v)
            totals[place] = gang.integers.sum(totals[place], seen)
        if line is not None and hop < gang.size - 1:
            travelling = _passed_on(line, travelling)
    return [[Piece(piece.extent, array) for piece, array in zip(queries, totals, strict=True)]]


def _ring_attention_grad(gang: _Gang) -> list[list[Piece]]:
    """Keys and values go around with their gradients, which take one hop more to come home."""
    gradients, queries, keys, values = gang.inputs
    of_q = [np.zeros_like(piece.array) for piece in queries]
    line = gang.line() if gang.size > 1 else None
    travelling: list[tuple[Piece, ...]] = list(zip(keys, values, strict=True))
    owed: list[tuple[Piece, ...]] = [
        tuple(Piece(piece.extent, np.zeros_like(piece.array)) for piece in pair) for pair in travelling
    ]
    for hop in range(gang.size):
        for place, (k, v) in enumerate(travelling):
            seen = attend_grad(gang.integers, gang.network, gradients[place], queries[place], k, v)
            of_q[place] = gang.integers.sum(of_q[place], seen[0])
            owed[place] = tuple(
                Piece(piece.extent, gang.integers.sum(piece.array, array))
                for piece, array in zip(owed[place], seen[1:], strict=True)
            )
        if line is not None:
            owed = _passed_on(line, owed)
            travelling = _passed_on(line, travelling) if hop < gang.size - 1 else travelling
    of_k, of_v = zip(*owed, strict=True)
    return [
        [Piece(piece.extent, array) for piece, array in zip(queries, of_q, strict=True)],
        list(of_k),
        list(of_v),
    ]


def _passed_on(line: Line, pieces: Sequence[tuple[Piece, ...]]) -> list[tuple[Piece, ...]]:
    """What every place has after each has sent its pieces to the next."""
    size = len(pieces)
    return [
        tuple(
            Piece(piece.extent, line.send((place - 1) % size, place, piece.array))
            for piece in pieces[(place - 1) % size]
        )
        for place in range(size)
    ]


_TOGETHER: Mapping[str, Callable[[_Gang], list[list[Piece]]]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "ring_attention": _ring_attention,
    "ring_attention_grad": _ring_attention_grad,
    "average": _average,
}
