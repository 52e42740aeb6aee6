"""Which rank is slow, and how many shares each should have: measured seconds in, owners and a reason out.

Shares never change, only their owners do: no bit depends on it.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SLOW_RATIO = 1.5
"""A rank is named slow when a share takes it so many times the median of all ranks; what stragglers cost is 1.34 times the
time of a job in the mean of published cases."""
LEAST_GAIN = 0.1
"""Shares move when the slowest rank would then be done in at least this part less time; below that it is noise, and shares
would wander."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """Who owns which share from now on.

    Args:
        owners: By share.
        slow: Ranks that are named slow, with their seconds a share over the median.
        reason: Why owners change; empty if they do not.
    """

    owners: tuple[int, ...]
    slow: Mapping[int, float]
    reason: str = ""


def balance(owners: Sequence[int], members: Sequence[int], share_s: Mapping[int, float]) -> Balance:
    """The owners from now on, given those until now.

    A rank that is slow gives shares to others, and gets them back when it is not; one that has stronger cards has more from
    the first measurement on. Nobody is left without a share, and nobody gets more than it would have after the loss of a
    peer, which it must have room for anyway.

    Args:
        owners: By share, each a member.
        members: Ranks of the epoch, in order.
        share_s: Seconds that one share takes each member, above 0.
    """
    slow = slow_ranks(share_s)
    counts = {rank: sum(owner == rank for owner in owners) for rank in members}
    best = _counts(len(owners), members, share_s)
    now_s, then_s = (max(found[rank] * share_s[rank] for rank in members) for found in (counts, best))
    if then_s > (1 - LEAST_GAIN) * now_s:
        return Balance(owners=tuple(owners), slow=slow)
    named = [f"rank {rank} takes {ratio:.1f} times the median for a share" for rank, ratio in slow.items()]
    moved = " to ".join(", ".join(str(found[rank]) for rank in members) for found in (counts, best))
    saved = f"a step computes for {then_s:.3g} s instead of {now_s:.3g} s"
    return Balance(
        owners=tuple(rank for rank in members for _ in range(best[rank])),
        slow=slow,
        reason="; ".join([*named, f"shares of ranks {', '.join(map(str, members))}: {moved}", saved]),
    )


def slow_ranks(share_s: Mapping[int, float]) -> dict[int, float]:
    """Ranks far slower than the median, with the ratio.

    >>> slow_ranks({0: 1.0, 1: 4.0, 2: 1.0})
    {1: 4.0}
    """
    median = statistics.median(share_s.values())
    return {rank: took / median for rank, took in share_s.items() if took > SLOW_RATIO * median}


def prior_share_s(peak_flops_per_s: Sequence[float]) -> dict[int, float]:
    """Relative seconds a share by rank before anything was measured: what the devices' peaks say."""
    return {rank: 1 / peak for rank, peak in enumerate(peak_flops_per_s)}


def _counts(num_shares: int, members: Sequence[int], share_s: Mapping[int, float]) -> dict[int, int]:
    """Shares of each rank with which the last one is done soonest: one after the other to whoever is done first with it."""
    most = -(-num_shares // max(1, len(members) - 1))
    counts = dict.fromkeys(members, min(1, num_shares // len(members)))
    for _ in range(num_shares - sum(counts.values())):
        free = [rank for rank in members if counts[rank] < most]
        counts[min(free, key=lambda rank: ((counts[rank] + 1) * share_s[rank], members.index(rank)))] += 1
    return counts
