"""How long collectives take: latency times hops, then bytes over the slowest link that they cross."""

import math
from dataclasses import dataclass

from trimtab.catalog import Cluster, Level, Link
from trimtab.plan.explanation import CollectiveUse
from trimtab.plan.program import OperatorKind, Transfer

LINK_SHARE = 0.82
"""Part of a link's bandwidth that a large collective reaches. Source: ring all-reduce of 16 GiB on 8 H200, bus
bandwidth 367 of 450 GB/s (stas00/ml-engineering, network/README.md); on 8 A100 it was 235 of 300."""

LAUNCH_S = 30e-6
"""Of one collective of the backend before its first hop. Source: all-reduces of 32 KiB to 1 MiB on 8 H200 take 39
to 46 us as issued from PyTorch (the same page), of which 14 hops over NVLink are 8 us."""


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """One run of a collective.

    Args:
        seconds: That it takes by itself.
        level: Of the link that decides.
        link: That link.
    """

    seconds: float
    level: Level
    link: Link


def collective_time(use: CollectiveUse, cluster: Cluster) -> CollectiveTime:
    """How long one run takes the ranks of a rank group, nothing else on the links.

    The backend spreads what leaves a node over the links of all ranks that the node has in the group; a route of
    our own sends it from the rank that the schedule names. Ignored is the time of the additions.

    Args:
        use: The collective.
        cluster: Whose links carry it.
    """
    traffic = use.traffic
    ranks = len(traffic.groups[0])
    across = use.most.site
    if traffic.transfer.route == "native" and across and use.num_groups:
        across = -(-use.total.site // (use.num_groups * ranks))
    level = use.most.slowest
    link = cluster.link(level)
    seconds = {Level.NODE: _transfer_s(use.most.node, cluster.link(Level.NODE))}
    if across:
        seconds[Level.SITE] = _transfer_s(across, cluster.link(Level.SITE))
    latency_s = LAUNCH_S + hops(traffic.operator.kind, traffic.transfer, ranks) * link.latency_s
    slowest = max(seconds, key=lambda found: seconds[found])
    return CollectiveTime(latency_s + seconds[slowest], slowest, cluster.link(slowest))


def hops(kind: OperatorKind, transfer: Transfer, ranks: int) -> int:
    """Messages one after the other in one run of a collective on so many ranks.

    >>> hops(OperatorKind.ALL_REDUCE, Transfer(axes=("dp",), route="ring"), 8)
    14
    """
    if kind in (OperatorKind.SEND, OperatorKind.ALL_TO_ALL):
        return 1
    is_both = kind in (OperatorKind.ALL_REDUCE, OperatorKind.AVERAGE)
    doublings = math.ceil(math.log2(ranks)) if ranks > 1 else 0
    around = (2 if is_both else 1) * (ranks - 1)
    match transfer.route:
        case "tree":
            return 2 * doublings
        case "recursive_doubling":
            return doublings
        case "reduce_scatter":
            return 2 if is_both else 1
        case "native" if is_both:
            return min(around, 2 * doublings)  # Backends change to a tree where latency decides.
        case _:
            return around


def _transfer_s(size_bytes: int, link: Link) -> float:
    return size_bytes / (link.bytes_per_s * LINK_SHARE)
