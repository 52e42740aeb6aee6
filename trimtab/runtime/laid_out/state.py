"""Weights and optimizer states of one rank of a plan, in the pieces that the plan gives it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trimtab.ledger import WeightsDigest
from trimtab.plan.tables import Table
from trimtab.runtime.checkpoint.pieces import box_name
from trimtab.runtime.laid_out.contents import ANCHOR, MOMENTUM, PARAMETERS, ROUNDED, Contents, Held
from trimtab.runtime.lowering import (
    Extent,
    Key,
    Leftovers,
    Rank,
    Slot,
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
    go_back_together,
    hashable,
)


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
    """Weights and optimizer states of one position of a plan; see RunState, of which ``ElasticSeat`` does the rest.

    Args:
        rank: Of the plan, with its pieces.
        connect: Connects the ranks of an epoch.
    """

    def __init__(self, rank: Rank, connect: Callable[[Group], None]) -> None:
        self._rank, self._plan, self._connect = rank, rank.plan, connect
        self.contents = Contents(rank.plan, tuple(rank.optimizer.states))
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

    def take_back(self, group: Group, load: Callable[[int | None], int]) -> int:
        """See RunState; the lead says which one, every rank reads its pieces."""
        return go_back_together(group, load, self._rank.begin)

    def agree(self, group: Group, lead_says: bool) -> bool:
        """See RunState."""
        return as_lead_says(group, lead_says)

    def shapes(self) -> Parts:
        """See RunState."""
        found: dict[str, dict[str, Tensor]] = {}
        for held in self.contents.held:
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

    def read(self, key: tuple[str, str]) -> Tensor:
        """The own piece of a tensor, flat fp32."""
        return self._piece(self.contents.of(key)).float()

    def write(self, key: tuple[str, str]) -> Tensor:
        """The own piece of a tensor, flat, to be written to."""
        return self._piece(self.contents.of(key))

    def go_on(self, num_updates: int) -> None:
        """All pieces have been written: they are the state after so many updates."""
        self.num_updates = num_updates
        self._rank.optimizer.is_new = False
        self._rank.go_on()

    @property
    def has_leftovers(self) -> bool:
        """Whether compression keeps something of this layout between steps."""
        return bool(self._left)

    @property
    def is_torn(self) -> bool:
        """Whether it was left in the middle of an update."""
        return self._rank.is_torn

    @property
    def reduced_step(self) -> int | None:
        """The step that all its sums are there for, and that is not applied; None if there is none."""
        return self._rank.reduced_step

    def apply_reduced(self) -> None:
        """Apply it."""
        self._rank.apply_reduced()

    def _boxes(self, rank: int, piece_of: Callable[[Held, Extent], Tensor]) -> Parts:
        """What a rank saves, by the names of boxes."""
        found: dict[str, dict[str, Tensor]] = {}
        for held in self.contents.held:
            if not self.contents.is_first(held, rank):
                continue
            extent, shape = self.contents.extent(held, rank), held.parameter.shape
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
        for held in self.contents.held:
            parameter = held.parameter
            if not self.contents.has(held, self._rank.rank):
                continue
            weights = source.part(held.full_part)
            piece = read_piece(weights, parameter.name, self.contents.extent(held, self._rank.rank))
            self._piece(held).copy_(piece.reshape(-1))
            if held.part == PARAMETERS and parameter.has_master:
                stored = self._rank.stored[parameter.name]
                placements = parameter.stored[Table.PARAMS.value]
                extent = self.contents.extent_of(parameter, placements, self._rank.rank)
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
        weights = [held for held in self.contents.held if held.full_part == PARAMETERS]
        for number, held in enumerate(sorted(weights, key=lambda held: held.parameter.name)):
            tensor = self._collected(held, group, tag=_FIRST_TAG + number)
            if tensor is not None:
                digest.add(*hashable(held.parameter.name, tensor))
        lead = group.members[0]
        told = torch.zeros(32, dtype=torch.uint8)
        if group.rank == lead:
            told.copy_(torch.frombuffer(bytearray.fromhex(digest.hexadecimal), dtype=torch.uint8))
        group.broadcast(told, source=lead)
        return bytes(told.tolist()).hex()

    def _piece(self, held: Held) -> Tensor:
        """The own piece, flat; write to it to load."""
        name = held.parameter.name
        for mark, tensors in ((ANCHOR, self._rank.outer.anchors), (MOMENTUM, self._rank.outer.momenta)):
            if held.part.startswith(mark):
                return tensors[name, held.part.removeprefix(mark)].view(-1)
        if held.part == ROUNDED:
            return self._rank.stored[name].view(-1)
        if held.part != PARAMETERS:
            return self._rank.optimizer.states[held.part][name]
        if held.parameter.has_master:
            return self._rank.optimizer.masters[name]
        return self._rank.stored[name].view(-1)

    def _collected(self, held: Held, group: Group, *, tag: int) -> Tensor | None:
        """The logical tensor on the lead, in fp32; None on other ranks."""
        lead, own, transport = group.members[0], self._rank.rank, self._rank.wires.transport
        owners = [rank for rank in group.members if self.contents.is_first(held, rank)]
        if own != lead:
            if own in owners:
                transport.send(lead, self._piece(held).float().contiguous(), tag).wait()
            return None
        pieces = []
        for rank in owners:
            extent = self.contents.extent(held, rank)
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


def _imagined(_: Held, extent: Extent) -> Tensor:
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
