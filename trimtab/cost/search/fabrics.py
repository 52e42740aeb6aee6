"""Devices as closed forms see them."""

from dataclasses import dataclass, replace
from itertools import groupby

from trimtab.catalog import Cluster, Level, Probe
from trimtab.cost.stage_times import best_flops_per_s
from trimtab.terms import ComputeType, InputError

_USUAL_MULTIPROCESSORS = 128
"""Of a device whose number the catalog does not know."""


class SpaceError(InputError):
    """Layouts cannot be priced: the message says what is not known, and what would tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """Devices as the closed forms see them; of several kinds the slowest of each figure.

    Args:
        names: Of the kinds of device.
        num_devices: In all.
        peak_flops_per_s: Declared, in the type that the job computes in; utilisation is measured against it.
        product_flops_per_s: Of the best product, in the same type.
        memory_bytes: Of one device.
    """

    names: tuple[str, ...]
    num_devices: int
    peak_flops_per_s: float
    product_flops_per_s: float
    attention_flops_per_s: float
    memory_bytes: float
    memory_bytes_per_s: float
    multiprocessors: float
    island_devices: float
    island_bytes_per_s: float
    site_bytes_per_s: float


def fabric_of(cluster: Cluster, compute: str) -> Fabric:
    """What the closed forms need to know of a cluster.

    Args:
        cluster: Its devices and links.
        compute: Type of matrix products: fp32 or bf16.

    Raises: SpaceError for a device whose rates are not known.
    """
    devices = {node.accelerator.name: node.accelerator for node in cluster.nodes}
    rates, bandwidths, peaks = [], [], []
    for name, device in devices.items():
        rate = best_flops_per_s(device, compute)
        if rate is None or device.memory_bytes_per_s is None:
            raise SpaceError(
                f"layouts on {cluster.name} cannot be priced: the rate of {name} in {compute}, or of its memory, is not "
                "known\n  name a cluster of devices that the catalog knows with --cluster, or measure this one: trimtab probe --out FILE, "
                "then --probe FILE"
            )
        rates.append(rate)
        peaks.append(device.peak_flops_per_s(ComputeType(compute)) or rate)
        bandwidths.append(device.memory_bytes_per_s)
    links = {link.level: link.bytes_per_s for link in cluster.links}
    return Fabric(
        names=tuple(devices),
        num_devices=cluster.num_devices,
        peak_flops_per_s=min(peaks),
        product_flops_per_s=min(rates),
        attention_flops_per_s=min(rates),
        memory_bytes=min(device.memory_bytes for device in devices.values()),
        memory_bytes_per_s=min(bandwidths),
        multiprocessors=min(device.multiprocessors or _USUAL_MULTIPROCESSORS for device in devices.values()),
        island_devices=min(node.num_devices for node in cluster.nodes),
        island_bytes_per_s=links[Level.NODE],
        site_bytes_per_s=links.get(Level.SITE, links[Level.NODE]),
    )


def fabric_of_probe(probe: Probe) -> Fabric:
    """A machine as it was measured, its slowest rank deciding."""
    return Fabric(
        names=("this machine",),
        num_devices=probe.num_devices,
        peak_flops_per_s=min(probe.flops_per_s),
        product_flops_per_s=min(probe.flops_per_s),
        attention_flops_per_s=min(probe.flops_per_s),
        memory_bytes=float(probe.memory_bytes),
        memory_bytes_per_s=min(probe.memory_bytes_per_s),
        multiprocessors=1,
        island_devices=probe.num_devices,
        island_bytes_per_s=probe.link_bytes_per_s or 1.0,
        site_bytes_per_s=probe.link_bytes_per_s or 1.0,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Devices of one kind among others, neighbours by rank.

    Args:
        first: Rank of the first of them.
        fabric: Of them alone; what leaves a node goes over the links of the whole cluster.
        cluster: Of them alone.
    """

    first: int
    fabric: Fabric
    cluster: Cluster

    @property
    def name(self) -> str:
        """Of the kind of device."""
        return self.fabric.names[0]

    @property
    def num_devices(self) -> int:
        """In all."""
        return self.fabric.num_devices

    @property
    def flops_per_s(self) -> float:
        """Of all of them together, of the best product."""
        return self.num_devices * self.fabric.product_flops_per_s


def pools_of(cluster: Cluster, compute: str) -> tuple[Pool, ...]:
    """The two pools of a cluster with two kinds of devices, in order of rank.

    Empty for one kind, for more than two, and where ranks of two kinds alternate: such devices are taken by the slowest
    figure of each.

    Args:
        cluster: Its devices and links.
        compute: Type of matrix products: fp32 or bf16.

    Raises: SpaceError for a device whose rates are not known.
    """
    runs = [tuple(nodes) for _, nodes in groupby(cluster.nodes, key=lambda node: node.accelerator.name)]
    if len(runs) != 2:
        return ()
    whole = fabric_of(cluster, compute)
    found: list[Pool] = []
    for nodes in runs:
        alone = Cluster(
            name=f"{nodes[0].accelerator.name} of {cluster.name}",
            nodes=nodes,
            links=cluster.links if len(nodes) > 1 else (cluster.link(Level.NODE),),
            source=cluster.source,
        )
        found.append(
            Pool(
                first=sum(pool.num_devices for pool in found),
                fabric=replace(fabric_of(alone, compute), site_bytes_per_s=whole.site_bytes_per_s),
                cluster=alone,
            )
        )
    return tuple(found)
