"""Bytes per step between ranks, by the smallest place that holds both ends."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trimtab.plan.collectives import Send
from trimtab.plan.devices import Device
from trimtab.plan.meshes import coordinates
from trimtab.plan.physical import Plan, Traffic


class Reach(StrEnum):
    """The smallest place that holds both ends of a message, smallest first."""

    NODE = "node"
    RACK = "rack"
    SITE = "site"
    WORLD = "world"


def reach_of(devices: Iterable[Device]) -> Reach:
    """The smallest place that holds all of some devices."""
    first, *others = devices
    if all(device.node == first.node for device in others):
        return Reach.NODE
    if first.rack is not None and all(device.rack == first.rack for device in others):
        return Reach.RACK
    return Reach.SITE if all(device.site == first.site for device in others) else Reach.WORLD


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """What one rank sends in one collective.

    Args:
        collective: Its place in the plan's traffic, from 0.
        rank: The sender.
        peer: The receiver; None for all together.
        reach: How far it goes.
        bytes_per_step: Rounded, where the collective does not run in every step.
    """

    collective: int
    rank: int
    peer: int | None
    reach: Reach
    bytes_per_step: int


class Flows:
    """Everything that is sent in a step.

    Args:
        plan: Whose traffic it is.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        axis = plan.pipeline.axis
        ranks = range(plan.mesh.num_devices)
        self._places = [coordinates(plan.mesh, rank)[axis] if axis else 0 for rank in ranks]
        self._all: tuple[Flow, ...] | None = None

    def of_ranks(self) -> Sequence[Flow]:
        """By collective, rank and reach, all receivers together."""
        if self._all is None:
            self._all = tuple(
                flow for index, traffic in enumerate(self._plan.traffic) for flow in self._of(index, traffic)
            )
        return self._all

    def of_pairs(self) -> Iterator[Flow]:
        """By collective, sender and receiver."""
        for index, traffic in enumerate(self._plan.traffic):
            for indices, sends in traffic.sends:
                for group in (traffic.groups[found] for found in indices):
                    for send in sends:
                        source, target = group[send.source], group[send.target]
                        yield Flow(
                            collective=index,
                            rank=source,
                            peer=target,
                            reach=self._reach(source, target),
                            bytes_per_step=_per_step(send.elements, self._runs(traffic, source)),
                        )

    def _of(self, index: int, traffic: Traffic) -> Iterator[Flow]:
        for indices, sends in traffic.sends:
            # Groups with the same messages stand alike: what is far in one of them is far in all.
            by_source = self._by_source(traffic.groups[indices[0]], sends)
            for group in (traffic.groups[found] for found in indices):
                for (source, reach), sent_bytes in by_source.items():
                    rank = group[source]
                    yield Flow(
                        collective=index,
                        rank=rank,
                        peer=None,
                        reach=reach,
                        bytes_per_step=_per_step(sent_bytes, self._runs(traffic, rank)),
                    )

    def _by_source(self, group: Sequence[int], sends: Iterable[Send]) -> Mapping[tuple[int, Reach], int]:
        found: Counter[tuple[int, Reach]] = Counter()
        for send in sends:
            # The elements of a plan's messages are bytes.
            found[send.source, self._reach(group[send.source], group[send.target])] += send.elements
        return found

    def _reach(self, source: int, target: int) -> Reach:
        devices = self._plan.bound.devices
        return reach_of((devices[source], devices[target]))

    def _runs(self, traffic: Traffic, rank: int) -> float:
        return traffic.runs.get(self._places[rank], 0.0)


def _per_step(sent_bytes: int, runs: float) -> int:
    """Exact as long as the collective runs a whole number of times in a step."""
    return sent_bytes * int(runs) if runs.is_integer() else round(sent_bytes * runs)
