"""What does it cost that shares are added in a fixed tree, where they do not divide evenly among the replicas?

Subtrees that are not whole on one rank travel apart, a row each, in every sum of gradients. And who computes fewer shares
than the busiest takes part in its collectives all the same: it holds a piece of what they gather.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.plan.explanation.same_bits import obstacle_to_same_bits
from trimtab.plan.layout import piece_elements
from trimtab.plan.meshes import coordinates, groups
from trimtab.plan.physical import Plan, Traffic
from trimtab.plan.placements import PlacementKind
from trimtab.plan.program import OperatorKind, Phase
from trimtab.plan.shares import assign_shares, own_blocks, shares_of
from trimtab.plan.tables import BYTES_OF


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareTraffic:
    """Of one rank, in one step.

    Args:
        shares: That it computes.
        tree_bytes: That its sums of gradients send beyond those of the backend; below 0 where they send less.
        idle_bytes: That it sends in collectives over replicas for microbatches of which it has none.
    """

    shares: int
    tree_bytes: int
    idle_bytes: int


def share_traffic(plan: Plan) -> tuple[ShareTraffic, ...]:
    """By rank; empty where shares divide evenly, and where they are not told apart."""
    work = plan.work
    is_even = work.num_parts % work.replicas == 0 and work.parts_per_replica.bit_count() == 1
    if is_even or not work.has_fixed_order or obstacle_to_same_bits(plan) is not None:
        return ()
    return tuple(_Counter(plan).count())


def replica_of(plan: Plan, rank: int) -> int:
    """Which of the parts of a microbatch a rank computes: its place on the axes that split the batch."""
    at, found = coordinates(plan.mesh, rank), 0
    for axis in plan.bound.batch_axes:
        found = found * plan.mesh.size(axis) + at[axis]
    return found


class _Counter:
    def __init__(self, plan: Plan) -> None:
        self._plan, self._batch_axes = plan, plan.bound.batch_axes
        owners = assign_shares(plan.work.num_parts, range(plan.work.replicas))
        ranks = range(plan.mesh.num_devices)
        self._shares = [shares_of(replica_of(plan, rank), owners) for rank in ranks]
        axis = plan.pipeline.axis
        self._places = [coordinates(plan.mesh, rank)[axis] if axis else 0 for rank in ranks]
        self._rows: dict[tuple[str, ...], list[int]] = {}

    def count(self) -> Iterator[ShareTraffic]:
        tree, idle = ([0.0 for _ in self._shares] for _ in range(2))
        busiest = self._plan.work.parts_per_replica
        for traffic in self._plan.traffic:
            if not {*self._batch_axes} & {*traffic.transfer.axes}:
                continue
            for rank, size, sent_bytes in _senders(traffic):
                runs = traffic.runs.get(self._places[rank], 0.0)
                if traffic.phase is not Phase.UPDATE:
                    idle[rank] += runs * (1 - len(self._shares[rank]) / busiest) * sent_bytes
                elif _sums_gradients(traffic):
                    tree[rank] += runs * (self._tree_bytes(traffic, rank, size) - sent_bytes)
        for rank, own in enumerate(self._shares):
            yield ShareTraffic(shares=len(own), tree_bytes=round(tree[rank]), idle_bytes=round(idle[rank]))

    def _tree_bytes(self, traffic: Traffic, rank: int, size: int) -> int:
        """What a rank sends in a sum: each of its subtrees in pieces to all, and the sum if all want it."""
        partial = self._plan.update.values[traffic.tensors[0]].placements.axes_of(PlacementKind.PARTIAL)
        rows = self._rows_of(tuple(axis for axis in self._batch_axes if axis not in partial))[rank]
        elements = traffic.payload_bytes // BYTES_OF["fp32"]
        if traffic.operator.kind is OperatorKind.REDUCE_SCATTER:
            return rows * (size - 1) * elements // size * BYTES_OF["fp32"]
        return (rows + 1) * (size - 1) * piece_elements(elements, size) * BYTES_OF["fp32"]

    def _rows_of(self, met: tuple[str, ...]) -> list[int]:
        """By rank the subtrees that it has of a gradient whose shares have met over some axes."""
        if met not in self._rows:
            rows = self._rows[met] = [0] * len(self._shares)
            for group in groups(self._plan.mesh, met):
                shares = sorted({share for rank in group for share in self._shares[rank]})
                for rank in group:
                    rows[rank] = len(own_blocks(shares, self._plan.work.num_parts))
        return self._rows[met]


def _senders(traffic: Traffic) -> Iterator[tuple[int, int, int]]:
    """Each rank that takes part, with the size of its group and the bytes that it sends in one run."""
    for indices, sends in traffic.sends:
        sent_bytes: Counter[int] = Counter()
        for send in sends:
            sent_bytes[send.source] += send.elements
        for group in (traffic.groups[index] for index in indices):
            for place, rank in enumerate(group):
                yield rank, len(group), sent_bytes[place]


def _sums_gradients(traffic: Traffic) -> bool:
    """The loss and the counts that judge a step travel whole."""
    is_sum = traffic.operator.kind in (OperatorKind.ALL_REDUCE, OperatorKind.REDUCE_SCATTER)
    return is_sum and traffic.tensors[0].startswith(("acc:", "tied:", "grad:"))
