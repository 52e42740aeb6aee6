"""Pieces of the state from the ranks that have them to those that need them, in another layout or in the same one.

Every rank walks over the same list of tensors and knows of each piece who gives it to whom; tensors travel in batches, so
that what is under way stays small beside the state.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from trimtab.policy.holdings import Ground, Holding
from trimtab.runtime.checkpoint.pieces import inside, overlap
from trimtab.runtime.laid_out.contents import Contents, Held
from trimtab.runtime.lowering import Extent, boxes
from trimtab.runtime.process_groups import Group

_BATCH_ELEMENTS = 1 << 23
"""Logical elements after which a batch is sent: 32 MiB in fp32."""

Key = tuple[str, str]
"""Part and parameter."""

Box = tuple[tuple[int, int], ...]
"""Indices along each dim of a logical tensor, from first to last."""


def covers(contents: Contents, positions: frozenset[int]) -> bool:
    """Whether some positions of a layout have every element of the state between them."""
    return all(
        sum(_num_real(extent) for extent, _ in _sources(contents, held, positions))
        == prod(held.parameter.shape)
        for held in contents.kept
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """Of the state to other positions.

    Args:
        ground: What is moved, and who has it.
        source: The layout that it is in.
        target: The layout that it goes to.
        seats: Who gets which position of it.
    """

    ground: Ground
    source: Contents
    target: Contents
    seats: Sequence[int]

    def run(
        self, group: Group, read: Callable[[int, Key], Tensor], write: Callable[[Key], Tensor] | None
    ) -> int:
        """Move everything; every rank of the group calls it.

        Args:
            group: All that give or take.
            read: The own piece of a tensor, flat fp32, in one of the own slots.
            write: Where the new piece of a tensor goes, flat; None for a rank that takes nothing.

        Returns: Bytes that this rank has sent.
        """
        batch, waiting, sent = _Batch(), 0, 0
        for held in self.target.kept:
            for give in self._gives(held):
                batch.add(give, group.rank, held.key, read, write, self.source, self.target)
            waiting += prod(held.parameter.shape)
            if waiting >= _BATCH_ELEMENTS:
                sent += batch.send(group)
                waiting = 0
        return sent + batch.send(group)

    def _gives(self, held: Held) -> Iterator["_Give"]:
        """Who gives what of a tensor to whom, in one order."""
        old = self.source.of(held.key)
        for position, rank in enumerate(self.seats):
            if not self.target.has(held, position):
                continue
            wanted = self.target.extent(held, position)
            for extent, positions in _sources(self.source, old, frozenset(self.ground.holdings)):
                holding = self._giver(rank, position, positions)
                yield _Give(holding=holding, taker=rank, extent=extent, wanted=wanted)

    def _giver(self, rank: int, position: int, positions: Sequence[int]) -> Holding:
        """Who has a piece himself gives it to himself; else those who have it take turns."""
        found = [holding for place in positions for holding in self.ground.holdings[place]]
        own = [holding for holding in found if holding.holder == rank]
        return own[0] if own else found[position % len(found)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Give:
    holding: Holding
    taker: int
    extent: Extent
    wanted: Extent


@dataclass(kw_only=True, slots=True)
class _Batch:
    """What goes over the wires at once: for each rank, in order of its list."""

    given: dict[int, list[Tensor]] = field(default_factory=dict)
    taken: dict[int, list[Tensor]] = field(default_factory=dict)

    def add(
        self,
        give: _Give,
        own: int,
        key: Key,
        read: Callable[[int, Key], Tensor],
        write: Callable[[Key], Tensor] | None,
        source: Contents,
        target: Contents,
    ) -> None:
        giver, taker = give.holding.holder, give.taker
        if own not in (giver, taker):
            return
        from_views = _views(read(give.holding.slot, key), give.extent) if own == giver else None
        into_views = None
        if own == taker:
            assert write is not None, "who has a position has somewhere to put its pieces"
            into_views = _views(write(key), give.wanted)
        for old, new in _pairs(give, from_views, into_views):
            if own == giver == taker:
                assert old is not None
                assert new is not None
                new.copy_(old)
            elif old is not None:
                self.given.setdefault(taker, []).append(old.reshape(-1))
            elif new is not None:
                self.taken.setdefault(giver, []).append(new)

    def send(self, group: Group) -> int:
        """Exchange what has been collected; every rank calls it as often."""
        given = [torch.cat(self.given.get(rank, [torch.empty(0)])) for rank in group.members]
        sizes = [sum(view.numel() for view in self.taken.get(rank, ())) for rank in group.members]
        if group.size > 1:
            flat, found = torch.cat(given), torch.empty(sum(sizes))
            group.all_to_all(found, flat, output_splits=sizes, input_splits=[part.numel() for part in given])
            for rank, part in zip(group.members, torch.split(found, sizes), strict=True):
                for view in self.taken.get(rank, ()):
                    view.copy_(part[: view.numel()].view(view.shape))
                    part = part[view.numel() :]
        self.given.clear()
        self.taken.clear()
        return sum(part.nbytes for part in given)


def _pairs(
    give: _Give, old: Mapping[Box, Tensor] | None, new: Mapping[Box, Tensor] | None
) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """What a piece and a wanted one have in common: views of both, of those that are here."""
    for old_box in _boxes(give.extent):
        for new_box in _boxes(give.wanted):
            common = overlap(old_box, new_box)
            if common is not None:
                yield (
                    None if old is None else old[old_box][inside(common, old_box)],
                    None if new is None else new[new_box][inside(common, new_box)],
                )


def _views(flat: Tensor, extent: Extent) -> Mapping[Box, Tensor]:
    return {tuple(box): view for view, box in boxes(flat.view(extent.shape), extent)}


@functools.lru_cache(maxsize=1 << 16)
def _boxes(extent: Extent) -> list[Box]:
    return [tuple(box) for _, box in boxes(torch.empty(extent.shape, device="meta"), extent)]


def _num_real(extent: Extent) -> int:
    return sum(prod(last - first for first, last in box) for box in _boxes(extent))


def _sources(
    contents: Contents, held: Held, positions: frozenset[int]
) -> Iterator[tuple[Extent, tuple[int, ...]]]:
    """The different pieces of a tensor that some positions have, each with those that have it."""
    found: dict[Extent, list[int]] = {}
    for position in sorted(positions):
        if contents.has(held, position):
            found.setdefault(contents.extent(held, position), []).append(position)
    for extent, those in found.items():
        yield extent, tuple(those)
