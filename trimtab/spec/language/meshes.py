"""The grid of devices that MESH names, and whether it holds the devices that there are."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab.spec.errors import Place, Problem, StrategyError
from trimtab.spec.language.presets import name_uses
from trimtab.spec.language.syntax import AxisSize, MeshStatement, Program

DEFAULT_AXIS = "dp"
"""The axis that all devices stand on if no MESH statement says otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """The named grid of devices, each axis with its size; the last axis varies fastest."""

    axes: tuple[tuple[str, int], ...]

    @property
    def num_devices(self) -> int:
        """Places in the grid."""
        return math.prod(size for _, size in self.axes)

    def size(self, axis: str) -> int:
        """Devices along an axis of this mesh."""
        return dict(self.axes)[axis]

    def __str__(self) -> str:
        """``dp(4), tp(2)``, as errors list it."""
        return ", ".join(f"{axis}({size})" for axis, size in self.axes)


def resolve_mesh(program: Program, devices: int) -> Mesh:
    """The mesh of a program on so many devices; without a MESH statement one axis holds them all.

    Raises: StrategyError if the mesh cannot hold exactly these devices.
    """
    problems = list(mesh_problems(program, devices))
    if problems:
        raise StrategyError(name_uses(problems, program), program.documents)
    sizes = declared_sizes(program, devices)
    return Mesh(axes=tuple((axis, size) for axis, size in sizes.items() if size is not None))


def declared_sizes(program: Program, devices: int | None) -> Mapping[str, int | None]:
    """Axes and their sizes; None where ``*`` cannot be told, or the devices are not known."""
    meshes = _meshes(program)
    if not meshes:
        return {DEFAULT_AXIS: devices}
    axes = meshes[0].axes
    others = math.prod(axis.size for axis in axes if axis.size is not None)
    rest = devices // others if devices and others > 0 and devices % others == 0 else None
    return {axis.axis.text: rest if axis.size is None else axis.size for axis in axes}


def mesh_problems(program: Program, devices: int, devices_at: Place | None = None) -> Iterator[Problem]:
    """Why a mesh does not hold exactly these devices; `devices_at` is where they were counted."""
    if not _meshes(program):
        return
    first, *more = _meshes(program)
    for statement in more:
        others = (Place(span=first.span, note="the first MESH is here"),)
        yield Problem(
            span=statement.span, message="a second MESH", others=others, hint="Keep one of the two."
        )
    problems = list(_axis_problems(first.axes))
    yield from problems
    if not problems:
        yield from _size_problems(first, devices, devices_at)


def _meshes(program: Program) -> list[MeshStatement]:
    return [statement for statement in program.statements if isinstance(statement, MeshStatement)]


def _axis_problems(axes: Sequence[AxisSize]) -> Iterator[Problem]:
    seen: dict[str, AxisSize] = {}
    star: AxisSize | None = None
    for axis in axes:
        name = axis.axis.text
        if name in seen:
            others = (Place(span=seen[name].span, note=f"{name!r} is declared here first"),)
            yield Problem(span=axis.axis.span, message=f"axis {name!r} is declared twice", others=others)
        elif name.lower() in {known.lower() for known in seen}:
            other = next(known for known in seen if known.lower() == name.lower())
            others = (Place(span=seen[other].span, note=f"{other!r} is declared here"),)
            message = f"axes {other!r} and {name!r} differ in the size of letters only"
            yield Problem(
                span=axis.axis.span, message=message, others=others, hint="Name one of them otherwise."
            )
        seen.setdefault(name, axis)
        if axis.size is not None and axis.size < 1:
            message = f"axis {name!r} has size {axis.size}; it must be at least 1"
            yield Problem(span=axis.span, message=message)
        if axis.size is None and star is not None:
            others = (Place(span=star.span, note="the first '*' is here"),)
            yield Problem(span=axis.span, message="a second '*'; one axis may take the rest", others=others)
        star = star or (axis if axis.size is None else None)


def _size_problems(statement: MeshStatement, devices: int, devices_at: Place | None) -> Iterator[Problem]:
    sizes = [axis.size for axis in statement.axes if axis.size is not None]
    product, has_star = math.prod(sizes), len(sizes) < len(statement.axes)
    if product == devices or (has_star and devices % product == 0):
        return
    found = " x ".join(f"{axis.axis.text} {axis.size or '*'}" for axis in statement.axes)
    needs = f"a multiple of {product}" if has_star else str(product)
    yield Problem(
        span=statement.span,
        message=f"the mesh {found} needs {needs} devices; orchestration.devices is {devices}",
        others=(devices_at,) if devices_at else (),
        hint=f"Set orchestration.devices to {needs}, or change the mesh."
        + ("  One axis may be '*'." if not has_star else ""),
    )
