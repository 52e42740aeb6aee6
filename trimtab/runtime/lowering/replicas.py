"""Who trains together: one group of all ranks, or with AVERAGE one for each place on the averaged axes.

Each group is compared with one device of its own, which sees the samples of the group and no others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimtab.plan.physical import Plan
from trimtab.plan.program import OperatorKind, Value
from trimtab.runtime.lowering.experts import Region
from trimtab.runtime.lowering.extents import Extent, Layouts, Run
from trimtab.runtime.lowering.sites import Site, sites_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """Ranks that train one copy of the model together.

    Args:
        ranks: In order.
        rows: Of each microbatch, the samples that they see.
        place: Of the group on each averaged axis, in mesh order.
    """

    place: tuple[int, ...]
    ranks: tuple[int, ...]
    rows: tuple[int, ...]

    def own(self, extent: Extent, value: Value) -> Extent:
        """An extent counted in the replica's own samples."""
        if "batch" not in value.dims:
            return extent
        at = value.dims.index("batch")
        run = extent.dims[at]
        start = self.rows.index(run.start) if run.real else 0
        return extent.with_dim(at, replace(run, start=start))


def averaged_axes(plan: Plan) -> tuple[str, ...]:
    """Axes along which ranks train apart."""
    found = {axis for by_axis in plan.bound.averages.values() for axis in by_axis}
    return tuple(axis for axis, _ in plan.mesh.axes if axis in found)


def replicas_of(plan: Plan, layouts: Layouts) -> tuple[Replica, ...]:
    """All of them; their ranks together are all ranks."""
    axes = averaged_axes(plan)
    by_place: dict[tuple[int, ...], list[int]] = {}
    for rank, at in enumerate(layouts.places):
        by_place.setdefault(tuple(at[axis] for axis in axes), []).append(rank)
    tokens = plan.blocks[0].values["tokens"]
    found = []
    for place, ranks in by_place.items():
        rows: set[int] = set()
        for rank in ranks:
            run = layouts.extent(tokens.dims, tokens.shape, tokens.placements, rank).dims[0]
            rows |= set(range(run.start, run.start + run.real))
        found.append(Replica(place=place, ranks=tuple(ranks), rows=tuple(sorted(rows))))
    return tuple(found)


def regions_of(plan: Plan, layouts: Layouts, replica: Replica) -> Mapping[int, tuple[Region, ...]]:
    """Tokens that a replica's ranks route together, by layer, in the order of their slots; none without experts."""
    if not plan.network.experts:
        return {}
    return {site.layer: _regions(site, layouts, replica) for site in sites_of(plan) if site.layer is not None}


def _regions(site: Site, layouts: Layouts, replica: Replica) -> tuple[Region, ...]:
    dispatch = next(operator for operator in site.block.forward if operator.kind is OperatorKind.DISPATCH)
    gates = site.block.values[dispatch.inputs[1]]
    slots = site.block.values[dispatch.outputs[0]]
    found: dict[int, tuple[Run, ...]] = {}
    for rank in replica.ranks:
        held = layouts.extent(gates.dims, gates.shape, gates.placements, rank)
        run = layouts.extent(slots.dims, slots.shape, slots.placements, rank).dims[1]
        found[run.start] = replica.own(held, gates).dims[:2]
    return tuple(
        Region(*(slice(run.start, run.start + run.real) for run in found[start])) for start in sorted(found)
    )


def sees_slots_of_others(value: Value, replicas: Sequence[Replica]) -> bool:
    """Whether a value has slots that other replicas fill: they have no place on a replica's one device."""
    return len(replicas) > 1 and "slots" in value.dims
