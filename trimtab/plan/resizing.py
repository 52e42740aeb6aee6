"""On how many devices does a strategy still compute the same bits, and which ranks stand and fall together there?"""

from dataclasses import replace

from trimtab.plan.explanation.survival import replica_axes
from trimtab.plan.meshes import groups
from trimtab.plan.physical import Plan
from trimtab.plan.placements import REPLICATED, PlacementKind
from trimtab.spec import Mesh

Units = tuple[tuple[int, ...], ...]
"""Positions on a mesh that hold one copy of the state together, by copy."""


def elastic_axes(plan: Plan) -> tuple[str, ...]:
    """The axes that may be of another size without another order of addition, those that give way first in front.

    They split samples and nothing that is computed: not tensors, whose sums would be taken in another order, and not
    what is averaged, whose replicas differ by design. Replicas give way before storage does, for nothing moves then.
    """
    averaged = {axis for by_axis in plan.bound.averages.values() for axis in by_axis}
    found = [
        axis
        for axis, _ in plan.mesh.axes
        if axis in plan.bound.batch_axes and axis not in averaged and _computes_whole(plan, axis)
    ]
    replicas = replica_axes(plan)
    return tuple(sorted(found, key=lambda axis: axis not in replicas))


def smaller_meshes(mesh: Mesh, axes: tuple[str, ...]) -> tuple[Mesh, ...]:
    """A mesh and those on fewer devices, largest first; each axis gives way when those before it are used up.

    >>> [str(found) for found in smaller_meshes(Mesh(axes=(("replica", 2), ("dp", 2))), ("replica", "dp"))]
    ['replica(2), dp(2)', 'replica(1), dp(2)', 'replica(1), dp(1)']
    """
    found = [mesh]
    for axis in axes:
        for size in range(mesh.size(axis) - 1, 0, -1):
            found.append(_with_size(found[-1], axis, size))
    return tuple(found)


def units_of(plan: Plan) -> Units:
    """Positions that hold one copy of the state together: when one of them is lost, its unit is broken."""
    replicas = replica_axes(plan)
    return groups(plan.mesh, [axis for axis, _ in plan.mesh.axes if axis not in replicas])


def has_second_copy(plan: Plan) -> bool:
    """Whether another rank holds the same pieces as any rank does; it need not compute other samples."""
    return any(
        size > 1 and axis != plan.pipeline.axis and _stores_whole(plan, axis) for axis, size in plan.mesh.axes
    )


def _stores_whole(plan: Plan, axis: str) -> bool:
    return all(
        placements.on(axis) == REPLICATED
        for parameter in plan.parameters.values()
        for placements in parameter.stored.values()
    )


def _computes_whole(plan: Plan, axis: str) -> bool:
    kinds = {parameter.computed.on(axis).kind for parameter in plan.parameters.values()}
    return axis != plan.pipeline.axis and kinds == {PlacementKind.REPLICATED}


def _with_size(mesh: Mesh, axis: str, size: int) -> Mesh:
    return replace(mesh, axes=tuple((name, size if name == axis else old) for name, old in mesh.axes))
