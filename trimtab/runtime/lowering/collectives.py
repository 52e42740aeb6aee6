"""The collectives of a plan: what a rank puts in and what it gets, by the extents of the values before and after."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from trimtab.plan.devices import Device
from trimtab.plan.program import Operator, OperatorKind, Transfer, Value
from trimtab.runtime.compat import storage_of
from trimtab.runtime.lowering.compression import Compressor
from trimtab.runtime.lowering.extents import Extent, Layouts, assemble, cut
from trimtab.runtime.lowering.packing import Rows, in_one
from trimtab.runtime.lowering.routes import Route
from trimtab.runtime.lowering.types import DTYPES
from trimtab.runtime.lowering.wires import Sent, Wires

Members = tuple[int, ...]
"""Ranks of a group that take part, in order of rank."""


@dataclass(kw_only=True, slots=True)
class Gathering:
    """One collective of one rank; it may run many times.

    Args:
        operator: What is done.
        transfer: How the rank's own group does it.
        members: The group.
        values: Declared types by name.
        what: For counting and errors.
        is_last_use: Whether it may overwrite its inputs.
    """

    operator: Operator
    transfer: Transfer
    members: Members
    values: Mapping[str, Value]
    what: Sent
    is_last_use: bool = False


@dataclass(kw_only=True, slots=True)
class Collectives:
    """Runs collectives of one rank.

    Args:
        rank: Own.
        layouts: Extents on the mesh.
        wires: That carry them.
        devices: Where each rank stands, for hierarchical routes.
    """

    rank: int
    layouts: Layouts
    wires: Wires
    devices: Sequence[Device]
    compressor: Compressor = field(default_factory=Compressor)

    def bind(self, gathering: Gathering) -> "Collect":
        """How a collective runs: what does not change from run to run is looked up here."""
        kind, rows = gathering.operator.kind, self._rows(gathering)
        if rows is None:
            run = partial(_RUN[kind], self, gathering)
        elif kind is OperatorKind.ALL_GATHER:
            run = partial(self._gather_rows, gathering, rows)
        else:
            run = partial(self._scatter_rows, gathering, rows)
        dtypes = [DTYPES[gathering.values[name].dtype] for name in gathering.operator.outputs]

        def collect(tensors: Sequence[Tensor]) -> list[Tensor]:
            found = run(tensors)
            return [tensor.to(dtype) for tensor, dtype in zip(found, dtypes, strict=True)]

        return collect

    def slice(
        self, operator: Operator, tensors: Sequence[Tensor], values: Mapping[str, Value]
    ) -> list[Tensor]:
        """The own piece of each input; nothing is sent."""
        return [
            cut(tensor, self.extent(values[source]), self.extent(values[target])).clone()
            for tensor, source, target in zip(tensors, operator.inputs, operator.outputs, strict=True)
        ]

    def extent(self, value: Value, rank: int | None = None) -> Extent:
        """What a rank (this one by default) has of a value."""
        return self.layouts.extent(
            value.dims, value.shape, value.placements, self.rank if rank is None else rank
        )

    def _all_reduce(self, gathering: Gathering, tensors: Sequence[Tensor]) -> list[Tensor]:
        if len(gathering.members) == 1:
            return list(tensors)
        transfer = gathering.transfer
        key = gathering.operator.inputs
        line = self.wires.line(gathering.what, gathering.members)
        if self.compressor.takes(transfer):
            return self.compressor.all_reduce(line, self._route(gathering), transfer, key, tensors)
        flat = _packed(tensors, transfer)
        if not gathering.is_last_use and storage_of(flat) == storage_of(tensors[0]):
            flat = flat.clone()  # The backend sums in place, and somebody may read the summand yet.
        total = self._route(gathering).all_reduce(line, flat, transfer.operation)
        return unpack(total, [tensor.shape for tensor in tensors])

    def _average(self, gathering: Gathering, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor / len(gathering.members) for tensor in self._all_reduce(gathering, tensors)]

    def _reduce_scatter(self, gathering: Gathering, tensors: Sequence[Tensor]) -> list[Tensor]:
        """All tensors cut into a piece for each member; what is meant for one travels together."""
        operator, values, transfer = gathering.operator, gathering.values, gathering.transfer
        held = [self.extent(values[name]) for name in operator.inputs]
        # One vector for all: what is meant for a member stands together in it.
        flat = _packed(
            [
                cut(tensor, extent, self.extent(values[name], member))
                for member in gathering.members
                for tensor, extent, name in zip(tensors, held, operator.outputs, strict=True)
            ],
            transfer,
        )
        return self._scattered(gathering, flat.chunk(len(gathering.members)))

    def _scatter_rows(self, gathering: Gathering, rows: Rows, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same where every member's piece is a run of storage."""
        return self._scattered(gathering, rows.join(tensors).to(_wire(gathering.transfer)).unbind())

    def _scattered(self, gathering: Gathering, chunks: Sequence[Tensor]) -> list[Tensor]:
        operator, transfer = gathering.operator, gathering.transfer
        own = [self.extent(gathering.values[name]).shape for name in operator.outputs]
        if len(chunks) == 1:
            return unpack(chunks[0], own)
        line = self.wires.line(gathering.what, gathering.members)
        route = self._route(gathering)
        if self.compressor.takes(transfer):
            total = self.compressor.reduce_scatter(line, route, transfer, operator.inputs, chunks)
        else:
            total = route.reduce_scatter(line, chunks, transfer.operation)
        return unpack(total, own)

    def _all_gather(self, gathering: Gathering, tensors: Sequence[Tensor]) -> list[Tensor]:
        operator, values = gathering.operator, gathering.values
        shapes = [tensor.shape for tensor in tensors]
        by_member = [unpack(row, shapes) for row in self._gathered(gathering, tensors)]
        found = []
        for index, (source, target) in enumerate(zip(operator.inputs, operator.outputs, strict=True)):
            pieces = [
                (held[index], self.extent(values[source], member))
                for held, member in zip(by_member, gathering.members, strict=True)
            ]
            found.append(assemble(pieces, self.extent(values[target])))
        return found

    def _gather_rows(self, gathering: Gathering, rows: Rows, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same where every member's piece is a run of storage."""
        matrix = in_one(self._gathered(gathering, tensors)).view(len(gathering.members), -1)
        return rows.part(matrix)

    def _gathered(self, gathering: Gathering, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What each member puts in, as a vector."""
        flat = _packed(tensors, gathering.transfer)
        if len(gathering.members) == 1:
            return [flat]
        line = self.wires.line(gathering.what, gathering.members)
        return self._route(gathering).all_gather(line, flat)

    def _rows(self, gathering: Gathering) -> Rows | None:
        """How storage is cut between the members; None for another collective, and where cuts are of other kinds."""
        operator, values = gathering.operator, gathering.values
        wholes, cuts = operator.inputs, operator.outputs
        if operator.kind is OperatorKind.ALL_GATHER:
            wholes, cuts = cuts, wholes
        elif operator.kind is not OperatorKind.REDUCE_SCATTER:
            return None
        return Rows.of(
            [self.extent(values[name]) for name in wholes],
            [[self.extent(values[name], member) for member in gathering.members] for name in cuts],
        )

    def _all_to_all(self, gathering: Gathering, tensors: Sequence[Tensor]) -> list[Tensor]:
        operator, values = gathering.operator, gathering.values
        (tensor,), (source,), (target,) = tensors, operator.inputs, operator.outputs
        before, after = values[source], values[target]
        assert operator.dim_to is not None, "an all-to-all cuts a dim"
        at = before.dims.index(operator.dim_to)
        held, wanted = self.extent(before), self.extent(after)
        chunks = [
            cut(tensor, held, held.with_dim(at, self.extent(after, member).dims[at])).reshape(-1)
            for member in gathering.members
        ]
        dtype = DTYPES[gathering.transfer.wire]
        arrived = chunks
        if len(chunks) > 1:
            line = self.wires.line(gathering.what, gathering.members)
            arrived = line.all_to_all([chunk.to(dtype) for chunk in chunks])
        pieces = []
        for chunk, member in zip(arrived, gathering.members, strict=True):
            extent = self.extent(before, member).with_dim(at, wanted.dims[at])
            pieces.append((chunk.view(extent.shape), extent))
        return [assemble(pieces, wanted)]

    def _route(self, gathering: Gathering) -> Route:
        transfer = gathering.transfer
        if transfer.route != "hierarchical":
            return Route(name=transfer.route)
        levels = transfer.levels or ("node",)
        return Route(
            name="hierarchical",
            levels=tuple(tuple(self._place(rank, level) for rank in gathering.members) for level in levels),
        )

    def _place(self, rank: int, level: str) -> int | None:
        device = self.devices[rank]
        return {"node": device.node, "rack": device.rack, "site": device.site}[level]


_RUN: Mapping[OperatorKind, Callable[[Collectives, Gathering, Sequence[Tensor]], list[Tensor]]] = {
    OperatorKind.ALL_REDUCE: Collectives._all_reduce,
    OperatorKind.AVERAGE: Collectives._average,
    OperatorKind.REDUCE_SCATTER: Collectives._reduce_scatter,
    OperatorKind.ALL_GATHER: Collectives._all_gather,
    OperatorKind.ALL_TO_ALL: Collectives._all_to_all,
}


Collect = Callable[[Sequence[Tensor]], list[Tensor]]
"""From what a rank has of each input to what it has of each output."""


def _packed(tensors: Sequence[Tensor], transfer: Transfer) -> Tensor:
    """Several tensors as one vector in the type of the wire: over their own storage where that can be."""
    dtype = _wire(transfer)
    if all(tensor.dtype is dtype for tensor in tensors):
        return in_one(tensors)
    return in_one([tensor.to(dtype) for tensor in tensors])


def _wire(transfer: Transfer) -> torch.dtype:
    return DTYPES["bf16" if transfer.compress == "bf16" else transfer.wire]


def pack(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Several tensors as one vector."""
    flat = [tensor.reshape(-1).to(dtype) for tensor in tensors]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def unpack(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The tensors of these shapes that a vector packs, as views."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [piece.view(tuple(shape)) for piece, shape in zip(torch.split(flat, sizes), shapes, strict=True)]
