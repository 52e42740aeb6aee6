"""Who computes which share, and in what order shares are added.

A share is a fixed part of the global batch. The order of addition is one binary tree over share numbers that
never depends on who computed what; that is why the bits do not either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A complete subtree of the tree of addition: shares ``first`` to ``first + count - 1``."""

    level: int
    index: int
    first: int
    count: int


def blocks_at(level: int, num_shares: int) -> tuple[Block, ...]:
    """The subtrees of one level; level 0 are the shares, each level above pairs neighbours, the odd one moves up.

    >>> [(b.first, b.count) for b in blocks_at(1, 5)]
    [(0, 2), (2, 2), (4, 1)]
    """
    width = 1 << level
    starts = range(0, num_shares, width)
    return tuple(
        Block(level=level, index=i, first=start, count=min(width, num_shares - start))
        for i, start in enumerate(starts)
    )


def top_level(num_shares: int) -> int:
    """The level of the root: 0 for one share, 2 for three or four."""
    return max(0, (num_shares - 1).bit_length())


def own_blocks(owned: Sequence[int], num_shares: int) -> tuple[Block, ...]:
    """The fewest complete subtrees that cover exactly the owned shares, in order.

    Each is summed where it is owned and travels as one piece.

    >>> [(b.first, b.count) for b in own_blocks([0, 1, 2], 4)]
    [(0, 2), (2, 1)]
    """
    rest = set(owned)
    chosen: list[Block] = []
    for level in range(top_level(num_shares), -1, -1):
        for block in blocks_at(level, num_shares):
            members = set(range(block.first, block.first + block.count))
            if members <= rest:
                chosen.append(block)
                rest -= members
    return tuple(sorted(chosen, key=lambda block: block.first))


def assign_shares(num_shares: int, members: Sequence[int]) -> tuple[int, ...]:
    """The owner of each share when nothing is in flight: contiguous runs, the first members one share more.

    >>> assign_shares(4, [0, 2, 3])
    (0, 0, 2, 3)
    """
    each, more = divmod(num_shares, len(members))
    owners: list[int] = []
    for position, rank in enumerate(members):
        owners += [rank] * (each + (position < more))
    return tuple(owners)


def take_over(num_shares: int, members: Sequence[int], held: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """The owner of each share of a step in flight: who holds its gradient keeps it, orphans go to the least loaded.

    >>> take_over(4, [0, 2], {0: [0, 1], 2: [3]})
    (0, 0, 2, 2)
    """
    owners: list[int | None] = [None] * num_shares
    for rank in members:
        for share in held.get(rank, ()):
            if owners[share] is None:
                owners[share] = rank
    load = {rank: sum(owner == rank for owner in owners) for rank in members}
    for share, owner in enumerate(owners):
        if owner is None:
            taker = min(members, key=lambda rank: (load[rank], members.index(rank)))
            owners[share] = taker
            load[taker] += 1
    return tuple(owner for owner in owners if owner is not None)


def keep_only(num_shares: int, members: Sequence[int], held: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """The owner of each share under ``rescale``: lost shares are left out (-1)."""
    owners = [-1] * num_shares
    for rank in members:
        for share in held.get(rank, ()):
            if owners[share] == -1:
                owners[share] = rank
    return tuple(owners)


def shares_of(rank: int, owners: Sequence[int]) -> tuple[int, ...]:
    """The shares that a rank owns, in order."""
    return tuple(share for share, owner in enumerate(owners) if owner == rank)
