"""The devices that ranks stand on, as the column values that ``ON`` and ``WITHIN`` ask for."""

from dataclasses import dataclass

from trimtab.catalog import Cluster, ClusterError


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One rank's device.

    Args:
        rank: Counted from 0, node by node.
        node: Index of its machine in the cluster.
        rack: None where the cluster does not say.
        site: Index of its site; a cluster of one site has site 0.
        kind: The accelerator's name; column ``class``.
        memory_bytes: Of the device; None if not known. Column ``memory``.
    """

    rank: int
    node: int
    rack: int | None
    site: int
    kind: str
    memory_bytes: int | None

    def value(self, column: str) -> int | str | None:
        """What a predicate reads.

        Raises: KeyError for a column that devices do not have.
        """
        return {
            "rank": self.rank,
            "node": self.node,
            "rack": self.rack,
            "site": self.site,
            "class": self.kind,
            "memory": self.memory_bytes,
        }[column]


def devices_of(cluster: Cluster, num_devices: int) -> tuple[Device, ...]:
    """The first ``num_devices`` devices of a cluster, in order of rank.

    Raises: ClusterError if it has fewer.
    """
    if num_devices > cluster.num_devices:
        raise ClusterError(
            f"cluster {cluster.name!r} has {cluster.num_devices} devices and the job asks for {num_devices}; "
            f"set orchestration.devices to {cluster.num_devices} or less, or name a larger cluster"
        )
    found: list[Device] = []
    for index, node in enumerate(cluster.nodes):
        for _ in range(min(node.num_devices, num_devices - len(found))):
            found.append(
                Device(
                    rank=len(found),
                    node=index,
                    rack=None,
                    site=0,
                    kind=node.accelerator.name,
                    memory_bytes=node.accelerator.memory_bytes,
                )
            )
    return tuple(found)
