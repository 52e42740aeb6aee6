"""Ranks that hold and do the same."""

from dataclasses import dataclass

from trimtab.plan.meshes import coordinates
from trimtab.plan.physical import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class RankGroup:
    """Ranks between which only the data differ.

    Args:
        ranks: In order.
        place: Their coordinate on the pipeline's axis; 0 without a pipeline.
        stages: That each of them holds.
        ways: For every collective that some process groups run in another way: which way these ranks go.
    """

    ranks: tuple[int, ...]
    place: int
    stages: tuple[int, ...]
    ways: tuple[int, ...] = ()


def rank_groups(plan: Plan) -> tuple[RankGroup, ...]:
    """All ranks of a plan in groups, by place on the pipeline's axis, device and route; first ranks in order."""
    devices, axis = plan.bound.devices, plan.pipeline.axis
    ways = _ways(plan)
    found: dict[tuple[int, str, int | None, tuple[int, ...]], list[int]] = {}
    for rank in range(plan.mesh.num_devices):
        place = coordinates(plan.mesh, rank)[axis] if axis else 0
        device = devices[rank]
        key = (place, device.kind, device.memory_bytes, tuple(way[rank] for way in ways))
        found.setdefault(key, []).append(rank)
    return tuple(
        RankGroup(ranks=tuple(ranks), place=place, stages=plan.pipeline.stages_of(place), ways=chosen)
        for (place, _, _, chosen), ranks in found.items()
    )


def _ways(plan: Plan) -> list[list[int]]:
    """For each operator that travels in several ways, the way of every rank; 0 for the way of most."""
    by_operator: dict[int, list[int]] = {}
    for traffic in plan.traffic:
        if not traffic.operator.variants:
            continue
        ways = by_operator.setdefault(id(traffic.operator), [0] * plan.mesh.num_devices)
        way = max(ways) + 1
        for group in traffic.groups:
            for rank in group:
                ways[rank] = way
    distinct = {tuple(ways): ways for ways in by_operator.values()}
    return list(distinct.values())
