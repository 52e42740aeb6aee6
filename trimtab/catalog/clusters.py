"""Where devices stand: nodes and the links that join them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from trimtab.catalog.accelerators import Accelerator, Verified
from trimtab.catalog.errors import ClusterError

THIS_MACHINE = "this-machine"
"""The cluster that is built from the figures of a Machine."""

HOST = "CPU"
"""Name of a device that is the host itself."""


class Level(StrEnum):
    """The smallest place that holds all devices of a group, smallest first."""

    NODE = "node"
    SITE = "site"


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What joins the devices of a group whose smallest common place is of this level."""

    level: Level
    bytes_per_s: float
    """In one direction, for each device of a group that sends at once."""
    latency_s: float
    """Of one hop of a collective."""
    source: str
    """Where the figures come from and what in them is assumed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One machine with equal devices."""

    accelerator: Accelerator
    num_devices: int
    cores: int | None = None
    """CPU cores for all its devices; None if not known."""
    memory_bytes: int | None = None
    """Host memory for all its devices; None if not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Nodes and the links between their devices.

    Ranks are numbered node by node, so that neighbours stand on one node.
    Raises: ClusterError without a node, with two links of one level, or without a link that joins them.
    """

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    source: str
    """Where its form comes from and what in it is assumed."""

    def __post_init__(self) -> None:
        """Refuse a cluster whose devices could not reach each other."""
        levels = sorted(link.level for link in self.links)
        needed = [Level.NODE] if len(self.nodes) == 1 else [Level.NODE, Level.SITE]
        if not self.nodes or levels != needed:
            raise ClusterError(
                f"cluster {self.name!r} has {len(self.nodes)} nodes and links at {_listed(levels)}; it needs "
                "at least one node, one link at level node, and one at level site if it has several nodes"
            )

    @property
    def num_devices(self) -> int:
        """Devices of all nodes together: the largest world size."""
        return sum(node.num_devices for node in self.nodes)

    def node_of(self, rank: int) -> int:
        """The index in ``nodes`` of the node that a rank stands on, ranks from 0 to below ``num_devices``."""
        ends = accumulate(node.num_devices for node in self.nodes)
        return next(index for index, end in enumerate(ends) if rank < end)

    def level_of(self, ranks: Iterable[int]) -> Level:
        """The smallest place that holds all these ranks."""
        return Level.NODE if len({self.node_of(rank) for rank in ranks}) <= 1 else Level.SITE

    def link(self, level: Level) -> Link:
        """The link of a level.

        Raises: ClusterError if the cluster has no such level: it is one node.
        """
        for link in self.links:
            if link.level is level:
                return link
        raise ClusterError(f"cluster {self.name!r} is one node and has no link at level {level}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What was found of the machine that a command runs on."""

    num_devices: int
    """Ranks that share it."""
    cores: int
    memory_bytes: int
    has_accelerator: bool = False
    """Whether its ranks compute on devices beside the host, of which nothing else is known before a probe."""
    fp32_flops_per_s: float | None = None
    """Measured matrix products of one rank; None before a probe."""

    def __post_init__(self) -> None:
        """Refuse a machine without ranks, cores or memory."""
        for field in ("num_devices", "cores", "memory_bytes"):
            value = getattr(self, field)
            if value < 1:
                raise ClusterError(f"a machine's {field} is {value}; it must be at least 1")


def _listed(levels: Iterable[Level]) -> str:
    return ", ".join(levels) or "no level"


def this_machine(machine: Machine) -> Cluster:
    """One node, whose ranks share what was found."""
    source = "Told by the machine itself"
    device = Accelerator(
        name="accelerator" if machine.has_accelerator else HOST,
        vendor="",
        year=None,
        fp32_flops_per_s=machine.fp32_flops_per_s,
        bf16_flops_per_s=None,
        fp16_flops_per_s=None,
        fp8_flops_per_s=None,
        achievable_bf16_flops_per_s=None,
        achievable_fp8_flops_per_s=None,
        memory_bytes=machine.memory_bytes // machine.num_devices,
        memory_bytes_per_s=None,
        peer_bytes_per_s=None,
        devices_per_node=machine.num_devices,
        island_devices=None,
        multiprocessors=None,
        inter_node_bytes_per_s=None,
        host_bytes_per_s=None,
        power_w=None,
        verified=Verified.YES,
        source=source,
        note="One rank's part of the machine",
    )
    node = Node(
        accelerator=device,
        num_devices=machine.num_devices,
        cores=machine.cores,
        memory_bytes=machine.memory_bytes,
    )
    return Cluster(name=THIS_MACHINE, nodes=(node,), links=(_LOOPBACK,), source=source)


_LOOPBACK = Link(
    level=Level.NODE,
    bytes_per_s=2.5e9,
    latency_s=8e-6,
    source="Assumed until probed: TCP over loopback, as measured on one machine with 2 cores "
    "(iperf3 2.3 to 2.7 GB/s, round trip 15 to 16 us); other machines differ",
)
