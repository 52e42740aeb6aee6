"""Adds the gradients of all shares in one fixed tree, whoever computed them.

Reduce: every rank sums the complete subtrees that it owns and sends each owner of elements its piece of them.
Sum: the owner of a piece adds the subtrees in the order of the tree. Gather: everybody gets every piece.
Bytes out per rank: (n - 1)/n x elements x 4 for each subtree sent, and as much again for the gather.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from trimtab.plan import piece_elements
from trimtab.policy import Block, blocks_at, own_blocks, shares_of, top_level
from trimtab.runtime.process_groups import Group

Key = tuple[int, int]


class ShareSum:
    """Fixed-order sums of share gradients inside one epoch. Buffers are its own: drop it with the epoch.

    Args:
        num_shares: Shares of the global batch.
        length: Elements of a leaf that count (gradients and tail).
        capacity: Elements that a leaf really has; at least ``length`` rounded up for ``group.size`` pieces.
        device: Of the leaves.
    """

    def __init__(
        self, *, num_shares: int, length: int, capacity: int, group: Group, device: torch.device
    ) -> None:
        self._num_shares, self._device = num_shares, device
        self._group = group
        self._piece = piece_elements(length, group.size)
        assert capacity >= self._piece * group.size
        self._sums: dict[Key, Tensor] = {}
        self._received: Tensor | None = None
        self._full: Tensor | None = None

    def reduce(
        self, leaves: Mapping[int, Tensor], owners: Sequence[int], launched: Callable[[], None]
    ) -> Tensor:
        """Sum of all leaves over this rank's piece of the elements.

        ``leaves`` are this rank's own, by share; they are read, never written. ``launched`` is called while the
        exchange is in flight. Shares owned by nobody (-1) are left out of the tree.
        """
        group, piece = self._group, self._piece
        blocks = {rank: own_blocks(shares_of(rank, owners), self._num_shares) for rank in group.members}
        mine = [self._sum_block(block, leaves) for block in blocks[group.rank]]
        if group.size == 1:
            launched()
            parts = dict(zip(map(_key, blocks[group.rank]), mine, strict=True))
            return self._sum_tree(parts, length=piece)
        if len(mine) == 1:
            outgoing = mine[0][: piece * group.size]
        elif mine:
            outgoing = torch.stack(
                [part[: piece * group.size].view(group.size, piece) for part in mine], dim=1
            )
        else:  # who has come while the step is under way, and all shares have owners
            outgoing = torch.empty(0, dtype=torch.float32, device=self._device)
        counts = [len(blocks[rank]) for rank in group.members]
        incoming = torch.empty(sum(counts) * piece, dtype=torch.float32, device=self._device)
        group.all_to_all(
            incoming,
            outgoing.reshape(-1),
            output_splits=[count * piece for count in counts],
            input_splits=[len(mine) * piece] * group.size,
            launched=launched,
        )
        keys = [_key(block) for rank in group.members for block in blocks[rank]]
        return self._sum_tree(dict(zip(keys, torch.split(incoming, piece), strict=True)), length=piece)

    def gather(self, piece: Tensor, launched: Callable[[], None]) -> Tensor:
        """Every rank's piece, in order: the whole sum, ``length`` elements and some beyond."""
        if self._group.size == 1:
            launched()
            return piece
        if self._full is None:
            self._full = torch.empty(self._piece * self._group.size, dtype=torch.float32, device=piece.device)
        self._group.all_gather(self._full, piece, launched=launched)
        return self._full

    def _sum_block(self, block: Block, leaves: Mapping[int, Tensor]) -> Tensor:
        """The sum of one complete subtree of own leaves; a single leaf is passed through."""
        return self._sum_range(
            block.level, block.index, {(s, 1): leaf for s, leaf in leaves.items()}, is_own=True
        )

    def _sum_tree(self, parts: Mapping[Key, Tensor], *, length: int) -> Tensor:
        total = self._sum_range(top_level(self._num_shares), 0, parts, is_own=False)
        return total[:length]

    def _sum_range(self, level: int, index: int, parts: Mapping[Key, Tensor], *, is_own: bool) -> Tensor:
        found = self._sum_or_none(level, index, parts, is_own=is_own)
        assert found is not None, "a subtree without any share was asked for"
        return found

    def _sum_or_none(
        self, level: int, index: int, parts: Mapping[Key, Tensor], *, is_own: bool
    ) -> Tensor | None:
        block = blocks_at(level, self._num_shares)[index]
        part = parts.get(_key(block))
        if part is not None or level == 0:
            return part
        below = blocks_at(level - 1, self._num_shares)
        children = [i for i in (2 * index, 2 * index + 1) if i < len(below)]
        sums = [self._sum_or_none(level - 1, i, parts, is_own=is_own) for i in children]
        present = [s for s in sums if s is not None]
        if len(present) < 2:
            return present[0] if present else None
        left, right = present
        if not is_own:  # received pieces are scratch
            return torch.add(left, right, out=left)
        target = self._sums.get(_key(block))
        if target is None:
            target = self._sums[_key(block)] = torch.empty_like(left)
        return torch.add(left, right, out=target)


def _key(block: Block) -> Key:
    return (block.first, block.count)
