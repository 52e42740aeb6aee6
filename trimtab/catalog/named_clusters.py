"""Which cluster does a name mean: one of the table, this machine, or so many devices of a kind, ``128xH200``."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from trimtab.catalog.accelerators import Accelerator, accelerator, accelerator_names
from trimtab.catalog.clusters import THIS_MACHINE, Cluster, Level, Link, Machine, Node, this_machine
from trimtab.catalog.errors import ClusterError, UnknownNameError
from trimtab.catalog.tables import toml_table

_GROUP = re.compile(r"([1-9][0-9]{0,6})x([A-Za-z][A-Za-z0-9-]*?)")
_NETWORK = re.compile(r"(.+)-([1-9][0-9]{0,5})Gb")

_NODE_LATENCY_S, _SITE_LATENCY_S, _ETHERNET_LATENCY_S = 0.6e-6, 2.7e-6, 10e-6
"""Of one hop: NCCL src/graph/tuning.cc, ring over NVLink and over the network, protocol LL; TCP over Ethernet as assumed for
the cluster 512xA100-100Gb."""

COMPOSED = (
    "or COUNTxKIND of accelerators in their usual nodes: 128xH200, 1024xMI300X; 64xA100+32xH100 of two kinds; "
    "256xH100-400Gb with so many Gb/s for each node"
)
"""What may stand where a cluster is named, besides the table."""


def cluster_names() -> tuple[str, ...]:
    """The clusters of the table, and this machine."""
    return (THIS_MACHINE, *toml_table("clusters.toml"))


def cluster(name: str, *, machine: Machine | None = None) -> Cluster:
    """The cluster called ``name``; ``this-machine`` is built from ``machine``.

    >>> cluster("72xGB200").nodes[0].num_devices, len(cluster("16384xH100").nodes)
    (72, 2048)

    Raises: UnknownNameError, with the nearest name; ClusterError for ``this-machine`` without a machine, and for a number
        of devices that fills no nodes, or links that nobody knows.
    """
    if name == THIS_MACHINE:
        if machine is None:
            raise ClusterError(f"cluster {name!r} needs the machine's devices, cores and memory")
        return this_machine(machine)
    tables = toml_table("clusters.toml")
    if name in tables:
        return _read(name, tables[name])
    return composed(name)


def composed(name: str) -> Cluster:
    """So many devices of a kind, in nodes as they are usually built and with the links that the catalog has of the kind.

    Raises: As ``cluster``.
    """
    found, node_gb = _groups(name)
    if not found:
        raise UnknownNameError("cluster", name, cluster_names(), more=COMPOSED)
    groups = [_group(name, count, kind) for count, kind in found]
    nodes = tuple(
        Node(accelerator=group.kind, num_devices=group.per_node)
        for group in groups
        for _ in range(group.num_nodes)
    )
    links = [_inside(name, groups), *([_between(name, groups, node_gb)] if len(nodes) > 1 else [])]
    forms = ", ".join(f"{group.num_nodes} of {group.per_node} {group.kind.name}" for group in groups)
    return Cluster(
        name=name,
        nodes=nodes,
        links=tuple(links),
        source=f"Assumed from the name: nodes as usually built, {forms}, at one site with nothing else on the network",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """So many devices of a kind, in nodes of so many."""

    kind: Accelerator
    count: int
    per_node: int

    @property
    def num_nodes(self) -> int:
        return self.count // self.per_node


def _groups(name: str) -> tuple[Sequence[tuple[int, Accelerator]], int | None]:
    """Numbers and kinds that a name is made of, none if it is not; and Gb/s of a node's network where it says so."""
    network = _NETWORK.fullmatch(name)
    text, node_gb = (network[1], int(network[2])) if network else (name, None)
    found = []
    for part in text.split("+"):
        match = _GROUP.fullmatch(part)
        kind = _kind(match[2]) if match else None
        if match is None or kind is None:
            return (), None
        found.append((int(match[1]), kind))
    return found, node_gb


def _kind(name: str) -> Accelerator | None:
    """An accelerator by its name, or by the first word of it: then the SXM one, and of those the one with most memory."""
    known = accelerator_names()
    if name in known:
        return accelerator(name)
    begins = [accelerator(full) for full in known if full.startswith(f"{name}-")]
    chosen = [kind for kind in begins if "-SXM-" in kind.name] or begins
    return max(chosen, key=lambda kind: kind.memory_bytes, default=None)


def _group(name: str, count: int, kind: Accelerator) -> _Group:
    """Devices that share fast links stand as one node, racks of 72 too."""
    size = kind.island_devices or kind.devices_per_node or 1
    if count > size and count % size:
        below = count - count % size
        raise ClusterError(
            f"cluster {name!r}: nodes of {kind.name} hold {size} devices, and {count} fill no number of them; "
            f"take {below} or {below + size}"
        )
    return _Group(kind=kind, count=count, per_node=min(count, size))


def _inside(name: str, groups: Sequence[_Group]) -> Link:
    """The link inside nodes, of the slowest kind."""
    remedy = "measure one by trimtab probe, and plan with --probe"
    rates = [
        _known(name, group.kind, group.kind.peer_bytes_per_s, "inside a node", remedy) for group in groups
    ]
    return _link(Level.NODE, min(rates), _NODE_LATENCY_S, _of_catalog(groups))


def _between(name: str, groups: Sequence[_Group], node_gb: int | None) -> Link:
    """The link between nodes, of the slowest kind, or so many Gb/s for all devices of a node."""
    if node_gb is not None:
        slowest = min(node_gb * 1e9 / 8 / group.per_node for group in groups)
        source = f"{node_gb} Gb/s a node, as the name says. Latency: assumed, TCP over Ethernet"
        return _link(Level.SITE, slowest, _ETHERNET_LATENCY_S, source)
    remedy = f"say what a node has: {name}-400Gb"
    rates = [
        _known(name, group.kind, group.kind.inter_node_bytes_per_s, "between nodes", remedy)
        for group in groups
    ]
    return _link(Level.SITE, min(rates), _SITE_LATENCY_S, _of_catalog(groups))


def _known(name: str, kind: Accelerator, rate: float | None, where: str, remedy: str) -> float:
    if rate is None:
        raise ClusterError(
            f"cluster {name!r}: the catalog does not know the rate {where} of {kind.name}; {remedy}"
        )
    return rate


def _of_catalog(groups: Sequence[_Group]) -> str:
    kinds = ", ".join(dict.fromkeys(group.kind.name for group in groups))
    slower = "the slowest of " if "," in kinds else ""
    return (
        f"Bandwidth: accelerators.csv, {slower}{kinds}. Latency: NCCL src/graph/tuning.cc, ring hop, protocol LL, assumed of "
        "other makes too"
    )


def _link(level: Level, bytes_per_s: float, latency_s: float, source: str) -> Link:
    assumed = "Assumed: every pair of nodes has it at once, whatever the switches between"
    return Link(level=level, bytes_per_s=bytes_per_s, latency_s=latency_s, source=f"{source}. {assumed}")


def _read(name: str, table: Mapping[str, object]) -> Cluster:
    groups = cast(Iterable[Mapping[str, object]], table.get("nodes", (table,)))
    return Cluster(
        name=name,
        nodes=tuple(node for group in groups for node in _read_nodes(group)),
        links=tuple(_read_links(cast(Iterable[Mapping[str, object]], table["links"]))),
        source=cast(str, table["source"]),
    )


def _read_nodes(table: Mapping[str, object]) -> tuple[Node, ...]:
    """Equal nodes, numbered one after the other."""
    node = Node(
        accelerator=accelerator(cast(str, table["accelerator"])),
        num_devices=cast(int, table["devices_per_node"]),
    )
    return (node,) * cast(int, table["num_nodes"])


def _read_links(tables: Iterable[Mapping[str, object]]) -> Iterable[Link]:
    for table in tables:
        yield Link(
            level=Level(cast(str, table["level"])),
            bytes_per_s=cast(float, table["gb_per_s"]) * 1e9,
            latency_s=cast(float, table["latency_us"]) * 1e-6,
            source=cast(str, table["source"]),
        )
