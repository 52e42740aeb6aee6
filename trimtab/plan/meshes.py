"""Ranks on a mesh: coordinates, and the process groups that axes make."""

import math
from collections.abc import Collection

from trimtab.spec import Mesh


def coordinates(mesh: Mesh, rank: int) -> dict[str, int]:
    """Where a rank stands on each axis; the last axis varies fastest.

    >>> coordinates(Mesh(axes=(("dp", 2), ("tp", 4))), 5)
    {'dp': 1, 'tp': 1}
    """
    found = {}
    for axis, size in reversed(mesh.axes):
        rank, found[axis] = divmod(rank, size)
    return {axis: found[axis] for axis, _ in mesh.axes}


def groups(mesh: Mesh, axes: Collection[str]) -> tuple[tuple[int, ...], ...]:
    """The process groups over some axes: ranks that differ in nothing else, in order of rank.

    >>> groups(Mesh(axes=(("dp", 2), ("tp", 2))), ["dp"])
    ((0, 2), (1, 3))
    """
    offsets, starts = [0], [0]
    stride = mesh.num_devices
    for axis, size in mesh.axes:
        stride //= size
        steps = [index * stride for index in range(size)]
        if axis in axes:
            offsets = [offset + step for offset in offsets for step in steps]
        else:
            starts = [start + step for start in starts for step in steps]
    return tuple(tuple(start + offset for offset in offsets) for start in starts)


def group_size(mesh: Mesh, axes: Collection[str]) -> int:
    """Ranks in each process group over some axes."""
    return math.prod(mesh.size(axis) for axis in axes)
