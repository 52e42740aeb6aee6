"""The collectives of a plan: what a rank puts in and what it gets, by the extents of the values before and after."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trimtab.plan.devices import Device
from trimtab.plan.program import Operator, OperatorKind, Transfer, Value
from trimtab.runtime.lowering.compression import Compressor, Key
from trimtab.runtime.lowering.extents import Extent, Layouts, assemble, cut
from trimtab.runtime.lowering.routes import Route
from trimtab.runtime.lowering.types import DTYPES
from trimtab.runtime.lowering.wires import Sent, Wires

Members = tuple[int, ...]
"""Ranks of a group that take part, in order of rank."""


@dataclass(kw_only=True, slots=True)
class Gathering:
    """One collective about to run on one rank.

    Args:
        operator: What is done.
        transfer: How the rank's own group does it.
        members: The group.
        tensors: What the rank puts in.
        values: Declared types by name.
        what: For counting and errors.
        where: The block at work, one layer told from another: by it what compression leaves over is kept.
    """

    operator: Operator
    transfer: Transfer
    members: Members
    tensors: Sequence[Tensor]
    values: Mapping[str, Value]
    what: Sent
    where: str

    @property
    def key(self) -> Key:
        """By which compression keeps what it leaves over."""
        return (self.where, *self.operator.inputs)


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

    def run(self, gathering: Gathering) -> list[Tensor]:
        """What the rank has of each output."""
        found = _RUN[gathering.operator.kind](self, gathering)
        names = gathering.operator.outputs
        return [
            tensor.to(DTYPES[gathering.values[name].dtype]) for tensor, name in zip(found, names, strict=True)
        ]

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

    def _all_reduce(self, gathering: Gathering) -> list[Tensor]:
        if len(gathering.members) == 1:
            return list(gathering.tensors)
        transfer = gathering.transfer
        line = self.wires.line(gathering.what, gathering.members)
        if self.compressor.takes(transfer):
            return self.compressor.all_reduce(
                line, self._route(gathering), transfer, gathering.key, gathering.tensors
            )
        flat = _packed(gathering.tensors, transfer)
        if flat.untyped_storage().data_ptr() == gathering.tensors[0].untyped_storage().data_ptr():
            flat = flat.clone()  # The backend sums in place, and somebody may read the summand yet.
        total = self._route(gathering).all_reduce(line, flat, transfer.operation)
        return unpack(total, [tensor.shape for tensor in gathering.tensors])

    def _average(self, gathering: Gathering) -> list[Tensor]:
        return [tensor / len(gathering.members) for tensor in self._all_reduce(gathering)]

    def _reduce_scatter(self, gathering: Gathering) -> list[Tensor]:
        """All tensors cut into a piece for each member; what is meant for one travels together."""
        operator, values, transfer = gathering.operator, gathering.values, gathering.transfer
        held = [self.extent(values[name]) for name in operator.inputs]
        # One vector for all: what is meant for a member stands together in it.
        flat = _packed(
            [
                cut(tensor, extent, self.extent(values[name], member))
                for member in gathering.members
                for tensor, extent, name in zip(gathering.tensors, held, operator.outputs, strict=True)
            ],
            transfer,
        )
        chunks = list(flat.chunk(len(gathering.members)))
        own = [self.extent(values[name]).shape for name in operator.outputs]
        if len(chunks) == 1:
            return unpack(chunks[0], own)
        line = self.wires.line(gathering.what, gathering.members)
        route = self._route(gathering)
        if self.compressor.takes(transfer):
            total = self.compressor.reduce_scatter(line, route, transfer, gathering.key, chunks)
        else:
            total = route.reduce_scatter(line, chunks, transfer.operation)
        return unpack(total, own)

    def _all_gather(self, gathering: Gathering) -> list[Tensor]:
        operator, values = gathering.operator, gathering.values
        flat = _packed(gathering.tensors, gathering.transfer)
        rows = [flat]
        if len(gathering.members) > 1:
            line = self.wires.line(gathering.what, gathering.members)
            rows = self._route(gathering).all_gather(line, flat)
        by_member = [unpack(row, [tensor.shape for tensor in gathering.tensors]) for row in rows]
        found = []
        for index, (source, target) in enumerate(zip(operator.inputs, operator.outputs, strict=True)):
            pieces = [
                (tensors[index], self.extent(values[source], member))
                for tensors, member in zip(by_member, gathering.members, strict=True)
            ]
            found.append(assemble(pieces, self.extent(values[target])))
        return found

    def _all_to_all(self, gathering: Gathering) -> list[Tensor]:
        operator, values = gathering.operator, gathering.values
        (tensor,), (source,), (target,) = gathering.tensors, operator.inputs, operator.outputs
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


_RUN: Mapping[OperatorKind, Callable[[Collectives, Gathering], list[Tensor]]] = {
    OperatorKind.ALL_REDUCE: Collectives._all_reduce,
    OperatorKind.AVERAGE: Collectives._average,
    OperatorKind.REDUCE_SCATTER: Collectives._reduce_scatter,
    OperatorKind.ALL_GATHER: Collectives._all_gather,
    OperatorKind.ALL_TO_ALL: Collectives._all_to_all,
}


def _packed(tensors: Sequence[Tensor], transfer: Transfer) -> Tensor:
    """Several tensors as one vector in the type of the wire."""
    return pack(tensors, DTYPES["bf16" if transfer.compress == "bf16" else transfer.wire])


def pack(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Several tensors as one vector."""
    flat = [tensor.reshape(-1).to(dtype) for tensor in tensors]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def unpack(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The tensors of these shapes that a vector packs, as views."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [piece.view(tuple(shape)) for piece, shape in zip(torch.split(flat, sizes), shapes, strict=True)]
