"""Who computes wrong numbers, silently? Shares that a second rank computes again, and replicas that are compared.

A share gives the same bits on whichever rank it is computed. So two answers that differ are proof that one rank is
wrong, and a third one says which.
"""

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SUSPICIOUS_FACTOR = 5.0
"""A gradient norm so many times the median of the last steps is checked before it is used: half of the factor ten that a
corruption must be found at, because the median may be twice the norm that the step would have had."""
MIN_NORMS, MAX_NORMS = 4, 64
"""Steps without which nothing is suspicious, and those that the median is taken over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One share that is computed twice.

    Args:
        owner: Computed it for the step.
        checker: Computes it again.
        arbiter: Decides if the two differ; the owner itself where there is nobody else.
    """

    share: int
    owner: int
    checker: int
    arbiter: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Who is wrong, None if that cannot be told, and how it came out."""

    liar: int | None
    reason: str


def probed_shares(*, seed: int, step: int, num_shares: int, rate: float) -> tuple[int, ...]:
    """The shares of a step that are computed twice: each with the chance ``rate``, the same on every rank.

    >>> probed_shares(seed=0, step=3, num_shares=4, rate=1.0)
    (0, 1, 2, 3)
    """
    return tuple(share for share in range(num_shares) if _chance(seed, step, share) < rate)


def plan_probes(
    shares: Sequence[int], owners: Sequence[int], members: Sequence[int], *, step: int
) -> tuple[Probe, ...]:
    """Who checks which share, and who decides; nobody where one rank is alone.

    The checker changes with the step, so that every pair of ranks meets.
    """
    others = len(members) - 1
    if others < 1:
        return ()
    probes = []
    for share in shares:
        owner = owners[share]
        if owner not in members:  # left out of the step
            continue
        place = members.index(owner)
        turn = (step + share) % others
        checker = members[(place + 1 + turn) % len(members)]
        arbiter = members[(place + 1 + (turn + 1) % others) % len(members)] if others > 1 else owner
        probes.append(Probe(share=share, owner=owner, checker=checker, arbiter=arbiter))
    return tuple(probes)


def judge(probe: Probe, *, owner: int, checker: int, arbiter: int) -> Verdict:
    """Who of two ranks that differ is wrong.

    Args:
        probe: The share.
        owner: Hash of what the owner computed.
        checker: Of what the checker computed, which differs.
        arbiter: Of what the arbiter computed.
    """
    assert owner != checker, "there is nothing to judge"
    again = "a third time" if probe.arbiter not in (probe.owner, probe.checker) else "again"
    told = f"share {probe.share}, computed {again} by rank {probe.arbiter},"
    if arbiter == checker:
        right, wrong = probe.checker, probe.owner
    elif arbiter == owner and probe.arbiter != probe.owner:
        right, wrong = probe.owner, probe.checker
    else:
        return Verdict(
            liar=None,
            reason=f"{told} does not tell whether rank {probe.owner} or rank {probe.checker} is wrong",
        )
    return Verdict(liar=wrong, reason=f"{told} gives the bits of rank {right}, and rank {wrong} had others")


def differing_replicas(digests: Mapping[int, int]) -> Verdict | None:
    """Which replica holds other parameters than most; None if all are equal.

    Args:
        digests: Hash of the parameters by rank.
    """
    counted = Counter(digests.values()).most_common()
    if len(counted) == 1:
        return None
    found, count = counted[0]
    if 2 * count <= len(digests):
        groups = [[rank for rank, digest in digests.items() if digest == each] for each, _ in counted]
        said = " and ".join(_ranks(group) for group in groups)
        return Verdict(liar=None, reason=f"{said} hold different parameters, and no majority is right")
    wrong = [rank for rank, digest in digests.items() if digest != found]
    return Verdict(
        liar=wrong[0], reason=f"{_ranks(wrong)} differs in its parameters from {count} others that agree"
    )


def suspicious_norm(past: Sequence[float]) -> float:
    """The gradient norm above which a step is checked before it is used; infinite while too few steps are known."""
    recent = [norm for norm in past[-MAX_NORMS:] if math.isfinite(norm)]
    return SUSPICIOUS_FACTOR * statistics.median(recent) if len(recent) >= MIN_NORMS else math.inf


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _chance(seed: int, step: int, share: int) -> float:
    """A number from 0 to below 1 that looks like chance, and is the same everywhere."""
    digest = hashlib.sha256(f"probe/{seed}/{step}/{share}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / (1 << 56)
