"""Which collectives a group of equal ranks takes part in, and how many bytes of each go over which level of link."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from trimtab.catalog import Level
from trimtab.plan.collectives import Send
from trimtab.plan.explanation.rank_groups import RankGroup
from trimtab.plan.physical import Plan, Traffic
from trimtab.plan.program import OperatorKind


@dataclass(frozen=True, slots=True)
class LevelBytes:
    """Bytes by the level of the link that they cross.

    Args:
        node: Between devices of one node.
        site: Between nodes.
    """

    node: int = 0
    site: int = 0

    def __add__(self, other: "LevelBytes") -> "LevelBytes":
        """Both together."""
        return LevelBytes(self.node + other.node, self.site + other.site)

    def times(self, factor: float) -> "LevelBytes":
        """So many times as much, in whole bytes."""
        return LevelBytes(round(self.node * factor), round(self.site * factor))

    @property
    def total(self) -> int:
        """Over all levels."""
        return self.node + self.site

    @property
    def slowest(self) -> Level:
        """The level of the slowest link that carries something."""
        return Level.SITE if self.site else Level.NODE


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveUse:
    """A collective as the ranks of one rank group see it.

    Args:
        traffic: The collective.
        runs: In one step.
        num_groups: Process groups that its ranks stand in.
        most: For each level the most that one rank of the rank group sends over it in one run.
        total: What all ranks of the rank group send in one run.
    """

    traffic: Traffic
    runs: float
    num_groups: int
    most: LevelBytes
    total: LevelBytes


def collective_uses(plan: Plan, groups: Sequence[RankGroup]) -> tuple[tuple[CollectiveUse, ...], ...]:
    """For each rank group its collectives, in the order of the plan; a hand-over stands with who sends it."""
    group_of = [0] * plan.mesh.num_devices
    for number, group in enumerate(groups):
        for rank in group.ranks:
            group_of[rank] = number
    nodes = [device.node for device in plan.bound.devices]
    found: list[list[CollectiveUse]] = [[] for _ in groups]
    for traffic in plan.traffic:
        for number, counted in _counted(traffic, group_of, nodes).items():
            runs = traffic.runs.get(groups[number].place, 0.0)
            is_receiver = traffic.operator.kind is OperatorKind.SEND and not any(counted.total)
            if runs and not is_receiver:
                found[number].append(counted.use(traffic, runs))
    return tuple(tuple(_handed_over_once(uses)) for uses in found)


def _handed_over_once(uses: Sequence[CollectiveUse]) -> Iterator[CollectiveUse]:
    """The collectives, with what stages of the same two ranks hand over alike as one that runs as often as all."""
    merged: dict[tuple[object, ...], CollectiveUse] = {}
    for use in uses:
        traffic = use.traffic
        if traffic.operator.kind is not OperatorKind.SEND:
            yield use
            continue
        key = (traffic.phase, traffic.groups[0], traffic.payload_bytes)
        known = merged.get(key)
        merged[key] = replace(known, runs=known.runs + use.runs) if known else use
    yield from merged.values()


def sent_in_step(uses: Iterable[CollectiveUse]) -> LevelBytes:
    """What all ranks of the rank groups of these uses send in one step."""
    return sum((use.total.times(use.runs) for use in uses), LevelBytes())


class _Counted:
    """Bytes of one run of a collective on one rank group, by level: node, site."""

    __slots__ = ("most", "num_groups", "total")

    def __init__(self) -> None:
        self.num_groups = 0
        self.most = [0, 0]
        self.total = [0, 0]

    def add(self, level: int, sent: int, times: int) -> None:
        self.most[level] = max(self.most[level], sent)
        self.total[level] += sent * times

    def use(self, traffic: Traffic, runs: float) -> CollectiveUse:
        return CollectiveUse(
            traffic=traffic,
            runs=runs,
            num_groups=self.num_groups,
            most=LevelBytes(*self.most),
            total=LevelBytes(*self.total),
        )


def _counted(traffic: Traffic, group_of: Sequence[int], nodes: Sequence[int]) -> dict[int, _Counted]:
    found: dict[int, _Counted] = {}
    for indices, sends in traffic.sends:
        levels = tuple(_sent_by_place([nodes[rank] for rank in traffic.groups[indices[0]]], sends))
        members = Counter(tuple([group_of[rank] for rank in traffic.groups[index]]) for index in indices)
        for numbers, times in members.items():
            for number in set(numbers):
                found.setdefault(number, _Counted()).num_groups += times
            for level, by_place in enumerate(levels):
                for place, sent in by_place.items():
                    found[numbers[place]].add(level, sent, times)
    return found


def _sent_by_place(nodes: Sequence[int], sends: Iterable[Send]) -> Iterator[dict[int, int]]:
    """What each place of a process group sends in one run, inside its node and beyond; equal for all that stand alike."""
    inside: dict[int, int] = {}
    across: dict[int, int] = {}
    for send in sends:
        level = inside if nodes[send.source] == nodes[send.target] else across
        level[send.source] = level.get(send.source, 0) + send.elements
    yield inside
    yield across
