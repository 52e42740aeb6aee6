"""Moves shares from slow ranks to others: ranks tell each other what a share takes them, and all decide alike."""

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from trimtab.policy import assign_shares
from trimtab.policy.slowness import balance
from trimtab.runtime.process_groups import Group
from trimtab.runtime.watch import Watch

_WINDOW = 8
"""Newest shares of a rank that its seconds are the median of."""


class Balancer:
    """The owners of all shares on one rank. All ranks of an epoch call it in the same steps.

    Args:
        num_shares: Of the global batch.
        every: Steps between two looks; 0: owners never change.
        tell: Is told of slow ranks and of moves, on the lead.
        prior_s: Relative seconds a share by rank, before anything is measured; empty if all devices are alike.
    """

    def __init__(
        self,
        *,
        num_shares: int,
        every: int,
        watch: Watch,
        tell: Callable[[str, dict[str, object]], None],
        prior_s: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        self._num_shares, self._every, self._watch, self._tell = num_shares, every, watch, tell
        self._prior_s = prior_s
        self._took_s: deque[float] = deque(maxlen=_WINDOW)
        self._owners: tuple[int, ...] = ()
        self._began = 0
        self._slow: tuple[int, ...] = ()

    def enter(self, members: Sequence[int], step: int) -> None:
        """An epoch begins: nobody knows what newcomers take, so all begin with what their devices promise."""
        self._owners = assign_shares(self._num_shares, members)
        if self._every and self._prior_s:
            prior_s = {rank: self._prior_s[rank] for rank in members}
            self._owners = balance(self._owners, members, prior_s).owners
        self._began = step

    def note(self, took_s: float) -> None:
        """A share of this rank has taken so long."""
        self._took_s.append(took_s)

    def owners(self, step: int, group: Group) -> tuple[int, ...]:
        """Who owns which share in a step."""
        is_due = self._every and step > self._began and step % self._every == 0
        if is_due and group.size > 1:
            self._look(step, group)
        return self._owners

    def _look(self, step: int, group: Group) -> None:
        word = torch.zeros(group.size, dtype=torch.float64)
        word[group.members.index(group.rank)] = statistics.median(self._took_s) if self._took_s else 0.0
        with self._watch.waiting("all_reduce of times"):
            group.all_reduce(word)
        share_s: dict[int, float] = dict(zip(group.members, word.tolist(), strict=True))
        if min(share_s.values()) <= 0:
            return
        found = balance(self._owners, group.members, share_s)
        slow = tuple(found.slow)
        if group.rank == group.members[0]:
            for rank in slow:
                if rank not in self._slow:
                    self._tell("slow", {"step": step, "rank": rank, "ratio": found.slow[rank]})
            if found.reason:
                self._tell("balanced", {"step": step, "owners": list(found.owners), "reason": found.reason})
        self._owners, self._slow = found.owners, slow
