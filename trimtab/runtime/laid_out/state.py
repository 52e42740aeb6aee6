"""Weights and optimizer states of one rank of a plan, in the pieces that the plan gives it."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trimtab.ledger import WeightsDigest
from trimtab.plan.placements import PlacementKind, Placements
from trimtab.plan.program import OperatorKind, Parameter
from trimtab.plan.tables import Table
from trimtab.policy.wire import Form
from trimtab.runtime.checkpoint.pieces import box_name
from trimtab.runtime.lowering import (
    Extent,
    Key,
    Leftovers,
    Rank,
    Slot,
    Stages,
    assemble,
    boxes,
    read_piece,
)
from trimtab.runtime.process_groups import Group
from trimtab.runtime.run_state import (
    FACTORS,
    RESIDUALS,
    Parts,
    StateSource,
    as_lead_says,
    fit_together,
    go_back_together,
    hashable,
)

_PARAMETERS = "parameters"
_ANCHOR, _MOMENTUM = "outer_anchor_", "outer_momentum_"
"""Of what replicas that train apart put together when they meet, before the axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """One logical tensor of the state.

    Args:
        part: ``parameters`` or a state of the optimizer.
        parameter: Whose it is.
        placements: How it lies on the ranks.
        where: Places on axes over which replicas train apart, each with a tensor of its own.
    """

    part: str
    parameter: Parameter
    placements: Placements
    where: tuple[tuple[str, int], ...] = ()

    @property
    def full_part(self) -> str:
        """``parameters``; of the second of two sites ``parameters@site1``."""
        return self.part + "".join(f"@{axis}{place}" for axis, place in self.where if place)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Left:
    """A tensor that compression keeps for one sum of one rank.

    Args:
        part: ``leftover_residuals@rank1``.
        rank: Whose.
        slot: Of which sum.
        shape: Of the tensor.
    """

    part: str
    rank: int
    slot: Slot
    shape: tuple[int, ...]


class LaidOutState:
    """See RunState. Nobody has all of it: a lost piece is only in checkpoints.

    Args:
        rank: Of the plan, with its pieces.
        connect: Connects the ranks of an epoch.
    """

    def __init__(self, rank: Rank, connect: Callable[[Group], None]) -> None:
        self._rank, self._plan, self._connect = rank, rank.plan, connect
        self._stages = Stages(rank.plan)
        self._states = tuple(rank.optimizer.states)
        self._held = tuple(self._all_held())
        leftovers = Leftovers(rank.plan, rank.layouts)
        self._left = tuple(_all_left(leftovers))
        self.layout = leftovers.layout

    @property
    def num_updates(self) -> int:
        """See RunState."""
        return self._rank.optimizer.num_steps

    @num_updates.setter
    def num_updates(self, number: int) -> None:
        self._rank.optimizer.num_steps = number

    def enter(self, group: Group) -> None:
        """See RunState."""
        self._connect(group)

    def catch_up(self, group: Group, form: Form, committed: int) -> int | None:
        """See RunState. Pieces fit together if nobody was interrupted inside an update and all are at one step."""
        return fit_together(group, is_torn=self._rank.is_torn, committed=committed)

    def take_back(self, group: Group, load: Callable[[int | None], int]) -> int:
        """See RunState; the lead says which one, every rank reads its pieces."""
        return go_back_together(group, load, self._rank.begin)

    def agree(self, group: Group, lead_says: bool) -> bool:
        """See RunState."""
        return as_lead_says(group, lead_says)

    def shapes(self) -> Parts:
        """See RunState."""
        found: dict[str, dict[str, Tensor]] = {}
        for held in self._held:
            tensors = found.setdefault(held.full_part, {})
            tensors[held.parameter.name] = torch.empty(held.parameter.shape, device="meta")
        for left in self._left:
            found.setdefault(left.part, {})[left.slot.name] = torch.empty(left.shape, device="meta")
        return found

    def saved_by(self, group: Group) -> Mapping[int, Parts]:
        """See RunState; the first of those that hold the same elements saves them."""
        found = {
            rank: {**self._boxes(rank, _imagined), **self._kept_by(rank, lambda left: _meta(left.shape))}
            for rank in group.members
        }
        return {rank: parts for rank, parts in found.items() if parts}

    def saved(self) -> Parts:
        """See RunState."""
        own = self._rank.rank
        pieces = self._boxes(own, lambda held, _: self._piece(held).float())
        return {**pieces, **self._kept_by(own, self._kept_or_zeros)}

    def _boxes(self, rank: int, piece_of: Callable[[_Held, Extent], Tensor]) -> Parts:
        """What a rank saves, by the names of boxes."""
        found: dict[str, dict[str, Tensor]] = {}
        for held in self._held:
            if not self._is_first(held, rank):
                continue
            extent, shape = self._extent(held, rank), held.parameter.shape
            for view, box in boxes(piece_of(held, extent).view(extent.shape), extent):
                found.setdefault(held.full_part, {})[box_name(held.parameter.name, box, shape)] = view
        return found

    def _kept_by(self, rank: int, kept_of: Callable[[_Left], Tensor]) -> Parts:
        """What a rank saves of its sums."""
        found: dict[str, dict[str, Tensor]] = {}
        for left in self._left:
            if left.rank == rank:
                found.setdefault(left.part, {})[left.slot.name] = kept_of(left)
        return found

    def load(self, source: StateSource, *, is_same_layout: bool) -> None:
        """See RunState."""
        for held in self._held:
            parameter = held.parameter
            if not self._has(held, self._rank.rank):
                continue
            weights = source.part(held.full_part)
            piece = read_piece(weights, parameter.name, self._extent(held, self._rank.rank))
            self._piece(held).copy_(piece.reshape(-1))
            if held.part == _PARAMETERS and parameter.has_master:
                stored = self._rank.stored[parameter.name]
                placements = parameter.stored[Table.PARAMS.value]
                extent = self._extent_of(parameter, placements, self._rank.rank)
                stored.copy_(read_piece(weights, parameter.name, extent))
        self._rank.optimizer.is_new = False
        self._rank.go_on()
        for left in self._left:
            if left.rank == self._rank.rank and is_same_layout:
                self._take_up(left, source.part(left.part).read(left.slot.name))

    def is_finite(self) -> bool:
        """See RunState."""
        return all(bool(torch.isfinite(piece.sum())) for piece in self._rank.stored.values())

    def digest(self, group: Group) -> str:
        """See RunState; the lead gets one tensor after the other, hashes it and lets it go, and tells the others."""
        digest = WeightsDigest()
        weights = [held for held in self._held if held.full_part == _PARAMETERS]
        for number, held in enumerate(sorted(weights, key=lambda held: held.parameter.name)):
            tensor = self._collected(held, group, tag=_FIRST_TAG + number)
            if tensor is not None:
                digest.add(*hashable(held.parameter.name, tensor))
        lead = group.members[0]
        told = torch.zeros(32, dtype=torch.uint8)
        if group.rank == lead:
            told = torch.frombuffer(bytearray.fromhex(digest.hexadecimal), dtype=torch.uint8)
        group.broadcast(told, source=lead)
        return bytes(told.tolist()).hex()

    def _all_held(self) -> Iterator[_Held]:
        updated = {
            operator.parameters[0]: self._plan.update.values[operator.outputs[0]].placements
            for operator in self._plan.update.operators
            if operator.kind is OperatorKind.UPDATE
        }
        for part in (_PARAMETERS, *self._states):
            for name, parameter in self._plan.parameters.items():
                is_stored = part == _PARAMETERS and not parameter.has_master
                placements = parameter.stored[Table.PARAMS.value] if is_stored else updated[name]
                for where in self._sites(name):
                    yield _Held(part=part, parameter=parameter, placements=placements, where=where)
        for name, parameter in self._plan.parameters.items():
            for axis in self._rank.outer.axes(name):
                for part in (f"{_ANCHOR}{axis}", f"{_MOMENTUM}{axis}"):
                    placements = parameter.stored[Table.PARAMS.value]
                    yield _Held(part=part, parameter=parameter, placements=placements)

    def _sites(self, name: str) -> Iterator[tuple[tuple[str, int], ...]]:
        """Places on the axes over which replicas of a parameter train apart."""
        axes = [*self._plan.bound.averages.get(name, {})]
        sizes = self._rank.layouts.sizes
        for places in itertools.product(*(range(sizes[axis]) for axis in axes)):
            yield tuple(zip(axes, places, strict=True))

    def _piece(self, held: _Held) -> Tensor:
        """The own piece, flat; write to it to load."""
        name = held.parameter.name
        for mark, tensors in ((_ANCHOR, self._rank.outer.anchors), (_MOMENTUM, self._rank.outer.momenta)):
            if held.part.startswith(mark):
                return tensors[name, held.part.removeprefix(mark)].view(-1)
        if held.part != _PARAMETERS:
            return self._rank.optimizer.states[held.part][name]
        if held.parameter.has_master:
            return self._rank.optimizer.masters[name]
        return self._rank.stored[name].view(-1)

    def _extent(self, held: _Held, rank: int) -> Extent:
        return self._extent_of(held.parameter, held.placements, rank)

    def _extent_of(self, parameter: Parameter, placements: Placements, rank: int) -> Extent:
        return self._rank.layouts.extent(parameter.dims, parameter.shape, placements, rank)

    def _collected(self, held: _Held, group: Group, *, tag: int) -> Tensor | None:
        """The logical tensor on the lead, in fp32; None on other ranks."""
        lead, own, transport = group.members[0], self._rank.rank, self._rank.wires.transport
        owners = [rank for rank in group.members if self._is_first(held, rank)]
        if own != lead:
            if own in owners:
                transport.send(lead, self._piece(held).float().contiguous(), tag).wait()
            return None
        pieces = []
        for rank in owners:
            extent = self._extent(held, rank)
            piece = torch.empty(extent.flat.length)
            if rank == own:
                piece = self._piece(held).float()
            else:
                transport.receive(rank, piece, tag).wait()
            pieces.append((piece.view(extent.shape), extent))
        return assemble(list(_unstored(pieces)), Extent.of(held.parameter.shape))

    def _kept_or_zeros(self, left: _Left) -> Tensor:
        """What this rank keeps of one sum; zeros before the sum has been taken."""
        kept = self._kept(left).get(left.slot.key)
        return torch.zeros(left.shape) if kept is None else kept.contiguous()

    def _take_up(self, left: _Left, tensor: Tensor) -> None:
        """Go on from what was kept of a sum; zeros are what there is before the first one."""
        if bool(tensor.any()):
            self._kept(left)[left.slot.key] = tensor.clone()

    def _kept(self, left: _Left) -> dict[Key, Tensor]:
        compressor = self._rank.compressor
        return compressor.factors if left.part.startswith(FACTORS) else compressor.residuals

    def _is_first(self, held: _Held, rank: int) -> bool:
        """Whether a rank is the first of those that hold the same elements."""
        # What replicas that train apart have in common is varying to the plan, too, and has no place of its own.
        cut = {axis for axis, placement in held.placements if placement.kind is not PlacementKind.VARYING}
        differing = cut | {axis for axis, _ in held.where} | {self._plan.pipeline.axis}
        places = self._rank.layouts.places[rank]
        is_first = all(place == 0 for axis, place in places.items() if axis not in differing)
        holds_first = self._stages.holds(rank, held.parameter.stages[:1])
        return is_first and holds_first and self._has(held, rank)

    def _has(self, held: _Held, rank: int) -> bool:
        """Whether a rank has a piece of a tensor."""
        places = self._rank.layouts.places[rank]
        is_there = all(places[axis] == place for axis, place in held.where)
        return is_there and self._stages.holds(rank, held.parameter.stages)


def _imagined(_: _Held, extent: Extent) -> Tensor:
    """A piece without numbers."""
    return _meta(extent.shape)


def _meta(shape: Sequence[int]) -> Tensor:
    return torch.empty(tuple(shape), device="meta")


def _all_left(leftovers: Leftovers) -> Iterator[_Left]:
    for rank, slots in enumerate(leftovers.slots):
        for slot in slots:
            yield _Left(part=f"{RESIDUALS}@rank{rank}", rank=rank, slot=slot, shape=(slot.numel,))
            if slot.factor is not None:
                yield _Left(part=f"{FACTORS}@rank{rank}", rank=rank, slot=slot, shape=slot.factor)


def _unstored(pieces: Sequence[tuple[Tensor, Extent]]) -> Iterator[tuple[Tensor, Extent]]:
    """Pieces of storage put together to those that the dims are cut into."""
    by_dims: dict[Extent, list[tuple[Tensor, Extent]]] = {}
    for piece, extent in pieces:
        by_dims.setdefault(replace(extent, stored=None), []).append((piece, extent))
    for extent, found in by_dims.items():
        yield assemble(found, extent), extent


_FIRST_TAG = 1 << 24
"""Of messages that carry the state: above those of microbatches."""
