"""Sums over the shares of a batch in one fixed tree, whatever ranks computed them and hold their gradients.

What a share adds to a gradient, its leaf, stays apart from the others until they meet: on the rank that computed it or,
where gradients are stored in pieces, on the rank that stores a piece. Neighbours in the tree are added as soon as both
are there; where that happens has no part in the order of addition.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.plan.layout import piece_elements
from trimtab.plan.meshes import groups
from trimtab.plan.physical import Plan, Work
from trimtab.plan.program import Operator, OperatorKind
from trimtab.plan.shares import assign_shares, blocks_at, own_blocks, shares_of, top_level
from trimtab.runtime.lowering.collectives import Collectives, Gathering, pack, unpack
from trimtab.runtime.lowering.extents import cut

Key = tuple[int, int]
"""The first share of a subtree and how many shares it has."""

Leaves = dict[Key, Tensor]
"""What subtrees add to one tensor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Apart:
    """A gradient whose shares have not all met.

    Args:
        by_key: What its subtrees add.
        met: Axes over which shares have met.
    """

    by_key: Leaves
    met: frozenset[str]


class Tree:
    """The fixed tree over so many shares."""

    def __init__(self, num_shares: int) -> None:
        self.root: Key = (0, num_shares)
        self._num_shares = num_shares
        self._joins = tuple(_joins(num_shares))

    def fold(self, leaves: Leaves) -> None:
        """Add neighbours that are both there, in place; the left one's memory holds the sum.

        >>> leaves = {(s, 1): torch.tensor(float(s)) for s in (0, 1, 3)}
        >>> Tree(4).fold(leaves)
        >>> leaves
        {(3, 1): tensor(3.), (0, 2): tensor(1.)}
        """
        for parent, left, right in self._joins:
            if left in leaves and right in leaves:
                leaves[parent] = leaves.pop(left).add_(leaves.pop(right))

    def keys(self, shares: Iterable[int]) -> tuple[Key, ...]:
        """The subtrees that some shares fold to."""
        return tuple((block.first, block.count) for block in own_blocks(sorted(shares), self._num_shares))


def _joins(num_shares: int) -> Iterator[tuple[Key, Key, Key]]:
    """Every addition of the tree, from the shares up: the sum, its left and its right part."""
    for level in range(1, top_level(num_shares) + 1):
        below = blocks_at(level - 1, num_shares)
        for block in blocks_at(level, num_shares):
            parts = below[2 * block.index : 2 * block.index + 2]
            if len(parts) == 2:
                left, right = ((part.first, part.count) for part in parts)
                yield (block.first, block.count), left, right


class Ownership:
    """Which share each rank computes in each of its microbatches.

    Args:
        plan: Whose shares.
        replica_of: By rank, which of the parts of a microbatch it computes.
    """

    def __init__(self, plan: Plan, replica_of: Sequence[int]) -> None:
        self._by_part = plan.work.microbatches_per_part
        owned = shares_by_replica(plan.work)
        self._shares = [owned[replica] for replica in replica_of]

    def of(self, rank: int) -> tuple[int, ...]:
        """The shares of a rank, in order."""
        return self._shares[rank]

    def at(self, rank: int, microbatch: int) -> int | None:
        """The share that a rank computes; None where it has none left."""
        turn = microbatch // self._by_part
        return self._shares[rank][turn] if turn < len(self._shares[rank]) else None


def shares_by_replica(work: Work) -> list[tuple[int, ...]]:
    """The shares of each replica: contiguous runs, the first replicas one share more."""
    owners = assign_shares(work.num_parts, range(work.replicas))
    return [shares_of(replica, owners) for replica in range(work.replicas)]


class ShareSums:
    """Adds leaves over ranks, for one rank of a plan.

    Args:
        plan: Its shares are added in a fixed tree.
        collectives: Of the rank.
        ownership: Which share is whose.
    """

    def __init__(self, plan: Plan, collectives: Collectives, ownership: Ownership) -> None:
        self.tree = Tree(plan.work.num_parts)
        self.ownership = ownership
        self._plan, self._collectives, self._rank = plan, collectives, collectives.rank
        self._batch_axes = frozenset(plan.bound.batch_axes)

    def on(self, collectives: Collectives) -> "ShareSums":
        """The same by the collectives of another thread."""
        return ShareSums(self._plan, collectives, self.ownership)

    def adds(self, operator: Operator) -> bool:
        """Whether an operator adds what different shares have left."""
        is_sum = operator.kind in (OperatorKind.REDUCE_SCATTER, OperatorKind.ALL_REDUCE)
        return is_sum and operator.transfer is not None and bool(self._batch_axes & {*operator.transfer.axes})

    def folded(self, apart: Apart) -> Tensor | Apart:
        """Subtrees with their neighbours added; a tensor like others once all shares have met."""
        self.tree.fold(apart.by_key)
        is_whole = apart.by_key.keys() == {self.tree.root}
        return apart.by_key[self.tree.root] if is_whole else apart

    def scatter(
        self, gathering: Gathering, tensors: Sequence[Tensor], microbatch: int
    ) -> dict[int, list[Tensor]]:
        """By share the own pieces of what a microbatch of every member adds to gradients that are stored in pieces."""
        rows = self._exchanged(gathering, [tensors], [1] * len(gathering.members))
        found = {}
        for member, (row,) in zip(gathering.members, rows, strict=True):
            share = self.ownership.at(member, microbatch)
            if share is not None:
                found[share] = unpack(row, self._shapes(gathering))
        return found

    def add(self, gathering: Gathering, inputs: Sequence[Leaves], met: frozenset[str]) -> list[Leaves]:
        """What all members have of each output: one subtree, once all shares have met.

        Args:
            gathering: The sum.
            inputs: Leaves of each input; they are left as they are.
            met: Axes over which shares have met before.
        """
        keys = [self._keys(member, met) for member in gathering.members]
        own = keys[gathering.members.index(self._rank)]
        rows = [[leaves[key] for leaves in inputs] for key in own]
        if gathering.operator.kind is OperatorKind.REDUCE_SCATTER:
            found = self._exchanged(gathering, rows, [len(each) for each in keys])
            joined = self._joined(zip(keys, found, strict=True))
            shapes = self._shapes(gathering)
        else:
            joined = self._all_reduced(gathering, rows, keys)
            shapes = [tensor.shape for tensor in rows[0]]
        by_key = {key: unpack(flat, shapes) for key, flat in joined.items()}
        return [{key: tensors[index] for key, tensors in by_key.items()} for index in range(len(inputs))]

    def _keys(self, member: int, met: frozenset[str]) -> tuple[Key, ...]:
        """The subtrees that a rank has of a tensor whose shares have met over some axes."""
        peers = next(group for group in groups(self._plan.mesh, met) if member in group)
        return self.tree.keys({share for peer in peers for share in self.ownership.of(peer)})

    def _exchanged(
        self, gathering: Gathering, rows: Sequence[Sequence[Tensor]], num_rows: Sequence[int]
    ) -> list[list[Tensor]]:
        """From every member its rows, cut to the own pieces of the outputs: one flat vector a row.

        Args:
            gathering: Whose outputs.
            rows: Own tensors, a row for each subtree.
            num_rows: By member.
        """
        extent, operator, values = self._collectives.extent, gathering.operator, gathering.values
        held = [extent(values[name]) for name in operator.inputs]

        def piece(row: Sequence[Tensor], member: int) -> Tensor:
            wanted = [extent(values[name], member) for name in operator.outputs]
            return pack([cut(*each) for each in zip(row, held, wanted, strict=True)], torch.float32)

        chunks = [torch.cat([piece(row, member) for row in rows]) for member in gathering.members]
        own_size = sum(torch.Size(shape).numel() for shape in self._shapes(gathering))
        return self._swapped(gathering, chunks, num_rows, own_size)

    def _all_reduced(
        self, gathering: Gathering, rows: Sequence[Sequence[Tensor]], keys: Sequence[tuple[Key, ...]]
    ) -> Leaves:
        """Every member adds one piece of the elements, and gives the sum to all."""
        flats = [pack(row, torch.float32) for row in rows]
        num_elements, size = flats[0].numel(), len(gathering.members)
        piece = piece_elements(num_elements, size)
        padded = [functional.pad(flat, (0, piece * size - num_elements)).view(size, piece) for flat in flats]
        chunks = [torch.cat([flat[place] for flat in padded]) for place in range(size)]
        found = self._swapped(gathering, chunks, [len(each) for each in keys], piece)
        joined = self._joined(zip(keys, found, strict=True))
        if size == 1:
            return {key: flat[:num_elements] for key, flat in joined.items()}
        line = self._collectives.wires.line(gathering.what, gathering.members)
        return {key: torch.cat(line.all_gather(joined[key]))[:num_elements] for key in sorted(joined)}

    def _swapped(
        self, gathering: Gathering, chunks: Sequence[Tensor], num_rows: Sequence[int], row_size: int
    ) -> list[list[Tensor]]:
        """Chunks given to members, and theirs taken: by member its rows."""
        if len(chunks) > 1:
            line = self._collectives.wires.line(gathering.what, gathering.members)
            chunks = line.exchange(chunks, [count * row_size for count in num_rows])
        return [list(chunk.view(count, row_size)) for chunk, count in zip(chunks, num_rows, strict=True)]

    def _joined(self, of_members: Iterable[tuple[tuple[Key, ...], list[Tensor]]]) -> Leaves:
        """Rows of all members in the tree; of members that computed the same shares the parts are added first."""
        leaves: Leaves = {}
        for keys, rows in of_members:
            for key, row in zip(keys, rows, strict=True):
                leaves[key] = leaves[key].add_(row) if key in leaves else row
        self.tree.fold(leaves)
        return leaves

    def _shapes(self, gathering: Gathering) -> list[tuple[int, ...]]:
        values = gathering.values
        return [self._collectives.extent(values[name]).shape for name in gathering.operator.outputs]
