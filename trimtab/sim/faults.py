"""When does what fail? Faults of a cluster drawn from a mixture, the same for every policy that meets them."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from random import Random

from trimtab.catalog.failures import FailureMixture


class FaultKind(StrEnum):
    """How a fault shows."""

    CRASH = "crash"
    HANG = "hang"
    CORRUPTION = "corruption"
    STORAGE = "storage"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Something fails.

    Args:
        at_s: Seconds after the start.
        kind: How it shows.
        nodes: Which nodes, neighbours in a burst; none for storage.
    """

    at_s: float
    kind: FaultKind
    nodes: tuple[int, ...]


def draw_faults(mixture: FailureMixture, *, num_nodes: int, horizon_s: float, seed: int) -> list[Fault]:
    """The faults of so many nodes in so much time, in order.

    Gaps follow a Weibull law whose mean is that of the mixture's rate. Which node is hit does not depend on what it was
    hit by before: a policy that excludes bad nodes meets fewer of these faults.

    Args:
        mixture: What fails how often.
        num_nodes: Of the cluster, spare ones not counted.
        horizon_s: Seconds to cover.
        seed: The same seed gives the same faults.
    """
    random = Random(seed)  # noqa: S311 - faults, no secrets
    nodes = _Nodes(mixture, num_nodes, random)
    return [
        Fault(at_s=at_s, kind=kind, nodes=() if kind is FaultKind.STORAGE else nodes.draw(random))
        for at_s in _times(mixture, num_nodes, horizon_s, random)
        for kind in (_kind(mixture, random),)
    ]


def _times(mixture: FailureMixture, num_nodes: int, horizon_s: float, random: Random) -> Iterator[float]:
    mean_s = mixture.mean_gap_s(num_nodes)
    if math.isinf(mean_s):
        return
    scale_s = mean_s / math.gamma(1 + 1 / mixture.shape)
    at_s = random.weibullvariate(scale_s, mixture.shape)
    while at_s < horizon_s:
        yield at_s
        at_s += random.weibullvariate(scale_s, mixture.shape)


def _kind(mixture: FailureMixture, random: Random) -> FaultKind:
    kinds = (FaultKind.HANG, FaultKind.CORRUPTION, FaultKind.STORAGE, FaultKind.CRASH)
    ends = list(accumulate((mixture.hangs, mixture.corruption, mixture.storage)))
    return kinds[bisect_right(ends, random.random())]


class _Nodes:
    """Who is hit: some nodes more often than others, now and then several neighbours."""

    def __init__(self, mixture: FailureMixture, num_nodes: int, random: Random) -> None:
        num_lemons = round(mixture.lemons * num_nodes)
        self._lemons: Sequence[int] = sorted(random.sample(range(num_nodes), num_lemons))
        self._mixture, self._num_nodes = mixture, num_nodes

    def draw(self, random: Random) -> tuple[int, ...]:
        is_lemon = random.random() < self._mixture.lemon_part and bool(self._lemons)
        first = random.choice(self._lemons) if is_lemon else random.randrange(self._num_nodes)
        if random.random() >= self._mixture.bursts:
            return (first,)
        start = min(first, max(self._num_nodes - self._mixture.burst_nodes, 0))
        return tuple(range(start, min(start + self._mixture.burst_nodes, self._num_nodes)))
