"""What ranks compute together: each collective on the pieces of one process group, hop by hop."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from symbolic_integers import Integers
from symbolic_local import attend, attend_grad
from symbolic_pieces import (
    Array,
    Piece,
    chunks_along,
    chunks_of_storage,
    join_along,
    join_storage,
)
from symbolic_plan import Operator, Plan, Transfer, Value
from symbolic_wires import Combine, Line, Route, Sent, Wires, exchange
from verdicts import RefereeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """The ranks of one process group in one run of a collective.

    Args:
        plan: Whose ranks they are.
        integers: Arithmetic.
        wires: That carry what is sent.
        what: Is sent.
        operator: To be run.
        transfer: How.
        members: The ranks, in order.
        inputs: For each input the pieces of all members.
        before: The inputs as declared.
        after: The outputs as declared.
    """

    plan: Plan
    integers: Integers
    wires: Wires
    what: Sent
    operator: Operator
    transfer: Transfer
    members: tuple[int, ...]
    inputs: list[list[Piece]]
    before: list[Value]
    after: list[Value]

    @property
    def size(self) -> int:
        """Ranks."""
        return len(self.members)

    @property
    def combine(self) -> Combine:
        """Sum, or maximum."""
        return np.maximum if self.transfer.operation == "max" else self.integers.sum

    def line(self) -> Line:
        """The wires of this run.

        Raises: RefereeError for a compression that keeps only a part of a gradient.
        """
        for pieces in self.inputs:
            extent = pieces[0].extent
            if not self.transfer.keeps_everything(extent.shape if extent.runs is None else (extent.numel,)):
                raise RefereeError(
                    f"{self.transfer.compress} keeps only a part of a gradient; what it computes is no matter of integers"
                )
        return self.wires.line(self.what, self.members, self.transfer.bytes_per_element)

    def route(self) -> Route:
        """How they send."""
        if self.transfer.route != "hierarchical":
            return Route(self.transfer.route)
        levels = self.transfer.levels or ("node",)
        return Route("hierarchical", [self.plan.places_of(self.members, level) for level in levels])

    def owners(self, value: Value, kind: str) -> list[int]:
        """For each member which of the pieces that these axes cut is its own."""
        axes = in_cutting_order(self.transfer.axes, value, kind)
        found = [self.plan.mesh.index(rank, axes) for rank in self.members]
        # Where not all ranks of the axes take part, those that do are counted.
        return [sorted(found).index(index) for index in found]

    def cut(self, piece: Piece, value: Value) -> list[Piece]:
        """A piece in as many as there are members, each at the place of the member that it is meant for."""
        dim = self.operator.dim_to
        kind = "stored" if dim == "stored" else "split"
        sizes = [self.plan.mesh.sizes[axis] for axis in in_cutting_order(self.transfer.axes, value, kind)]
        if (
            math.prod(sizes) != self.size
        ):  # Where not all ranks of the axes take part, those that do share alike.
            sizes = [self.size]
        pieces = [piece]
        for size in sizes:
            pieces = [part for whole in pieces for part in chunks(whole, dim, value, size)]
        return [pieces[owner] for owner in self.owners(value, kind)]


def together(gang: Gang) -> list[list[Piece]]:
    """For each output the pieces of all members.

    Raises: MisfitError or ValueError if the pieces cannot be put together.
    """
    return _TOGETHER[gang.operator.kind](gang)


def in_cutting_order(axes: Sequence[str], value: Value, kind: str | None = None) -> list[str]:
    """The axes in the order in which they cut a value; those that do not cut it come last."""
    order = [axis for axis, found, _ in value.placements if kind in (None, found)]
    return sorted(axes, key=lambda axis: order.index(axis) if axis in order else len(order))


def chunks(piece: Piece, dim: str | None, value: Value, pieces: int) -> list[Piece]:
    """A piece in equal ones, along a dim of its value or of its storage."""
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


def _all_reduce(gang: Gang) -> list[list[Piece]]:
    if gang.size == 1:
        return gang.inputs
    members = list(zip(*gang.inputs, strict=True))
    summed = _summed(gang, [_flat(pieces) for pieces in members])
    return _by_value([_unpacked(flat, pieces) for flat, pieces in zip(summed, members, strict=True)])


def _summed(gang: Gang, arrays: list[Array]) -> list[Array]:
    """The sum everywhere; what was picked by top-k is gathered and added by everyone."""
    if gang.transfer.compress != "topk":
        return gang.route().all_reduce(gang.line(), arrays, gang.combine)
    gathered = gang.route().all_gather(gang.line(), arrays)
    return [functools.reduce(gang.combine, row) for row in gathered]


def _average(gang: Gang) -> list[list[Piece]]:
    share = gang.integers.inverse(gang.size)
    return [
        [Piece(piece.extent, piece.array * share % gang.integers.modulus) for piece in pieces]
        for pieces in _all_reduce(gang)
    ]


def _reduce_scatter(gang: Gang) -> list[list[Piece]]:
    """All tensors cut into a piece for each member; what is meant for one travels together."""
    if gang.transfer.compress in (
        "topk",
        "powersgd",
    ):  # Every rank needs all that was picked, or whole factors.
        return _own_pieces_of_the_sum(gang)
    by_member = []  # For each member, for each target, the pieces of all tensors.
    for pieces in zip(*gang.inputs, strict=True):
        chunks = [gang.cut(piece, value) for piece, value in zip(pieces, gang.after, strict=True)]
        by_member.append(_by_value(chunks))
    if gang.size == 1:
        return _by_value([by_member[0][0]])
    flat = [[_flat(pieces) for pieces in targets] for targets in by_member]
    summed = gang.route().reduce_scatter(gang.line(), flat, gang.combine)
    return _by_value([_unpacked(array, by_member[at][at]) for at, array in enumerate(summed)])


def _own_pieces_of_the_sum(gang: Gang) -> list[list[Piece]]:
    found = []
    for pieces, value in zip(_all_reduce(gang), gang.after, strict=True):
        found.append([gang.cut(piece, value)[at] for at, piece in enumerate(pieces)])
    return found


def _all_gather(gang: Gang) -> list[list[Piece]]:
    members = list(zip(*gang.inputs, strict=True))
    flat = [_flat(pieces) for pieces in members]
    arrived = [flat] if gang.size == 1 else gang.route().all_gather(gang.line(), flat)
    by_member = []
    for rows in arrived:
        sources = [_unpacked(row, pieces) for row, pieces in zip(rows, members, strict=True)]
        of_values = zip(zip(*sources, strict=True), gang.before, gang.after, strict=True)
        by_member.append([_joined(gang, pieces, before, after) for pieces, before, after in of_values])
    return _by_value(by_member)


def _joined(gang: Gang, pieces: Sequence[Piece], before: Value, after: Value) -> Piece:
    """Pieces in order of members, put together in order of cutting."""
    owners = gang.owners(before, "split" if gang.operator.dim_from else "stored")
    ordered = [pieces[owners.index(owner)] for owner in range(gang.size)]
    declared = gang.plan.mesh.extents(after)[gang.members[0]]
    if gang.operator.dim_from is None:
        return join_storage(ordered, declared)
    dim = after.dims.index(gang.operator.dim_from)
    return join_along(ordered, dim, len(declared.indices[dim]))


def _all_to_all(gang: Gang) -> list[list[Piece]]:
    (pieces,), (after,) = gang.inputs, gang.after
    assert gang.operator.dim_from is not None, "an all-to-all takes a cut apart"
    cut = [chunks(piece, gang.operator.dim_to, after, gang.size) for piece in pieces]
    arrays = [[chunk.array for chunk in row] for row in cut]
    arrived = arrays if gang.size == 1 else exchange(gang.line(), arrays)
    dim = after.dims.index(gang.operator.dim_from)
    length = len(gang.plan.mesh.extents(after)[gang.members[0]].indices[dim])
    found = []
    for target, row in enumerate(arrived):
        parts = [Piece(cut[source][target].extent, array) for source, array in enumerate(row)]
        found.append(join_along(parts, dim, length))
    return [found]


def _ring_attention(gang: Gang) -> list[list[Piece]]:
    """Keys and values go around; every rank adds what it sees to its outputs."""
    queries, keys, values = gang.inputs
    totals = [np.zeros_like(piece.array) for piece in queries]
    line = gang.line() if gang.size > 1 else None
    travelling: list[tuple[Piece, ...]] = list(zip(keys, values, strict=True))
    for hop in range(gang.size):
        for place, (k, v) in enumerate(travelling):
            seen = attend(gang.integers, gang.plan.network, queries[place], k, v)
            totals[place] = gang.integers.sum(totals[place], seen)
        if line is not None and hop < gang.size - 1:
            travelling = _passed_on(line, travelling)
    return [[Piece(piece.extent, array) for piece, array in zip(queries, totals, strict=True)]]


def _ring_attention_grad(gang: Gang) -> list[list[Piece]]:
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
            seen = attend_grad(gang.integers, gang.plan.network, gradients[place], queries[place], k, v)
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


_TOGETHER: Mapping[str, Callable[[Gang], list[list[Piece]]]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "ring_attention": _ring_attention,
    "ring_attention_grad": _ring_attention_grad,
    "average": _average,
}
