"""What a program means on a given number of devices, as far as its text alone can tell.

Checked here: axes, dims, tables and routes exist; the mesh has as many places as there are devices; what is
split over an axis is summed over that axis, and nothing else is.
"""

import difflib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trimtab.spec.errors import Place, Problem, StrategyError
from trimtab.spec.language.syntax import (
    AxisSize,
    MeshStatement,
    Name,
    Program,
    ReduceStatement,
    SplitStatement,
)
from trimtab.spec.language.vocabulary import DIMS, LATER_ROUTES, TABLES

DEFAULT_AXIS = "dp"
"""The axis that all devices stand on if no MESH statement says otherwise."""


class Route(StrEnum):
    """How a sum over an axis travels; the order of addition is another matter."""

    NATIVE = "native"
    TREE = "tree"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A program with its defaults filled in.

    Args:
        mesh: The grid of devices.
        batch_axes: The axes that the batch is split over, in the order of the mesh.
        routes: For each of them, how gradients are summed over it.
        warnings: Statements without effect.
    """

    mesh: Mesh
    batch_axes: tuple[str, ...]
    routes: tuple[tuple[str, Route], ...]
    warnings: tuple[Problem, ...] = ()


def resolve_mesh(program: Program, devices: int) -> Mesh:
    """The mesh of a program on so many devices; without a MESH statement one axis holds them all.

    Raises: StrategyError if the mesh cannot hold exactly these devices.
    """
    problems = list(_mesh_problems(program, devices, None))
    if problems:
        raise StrategyError(problems, program.documents)
    return _mesh(program, devices)


def resolve_layout(program: Program, devices: int) -> Layout:
    """What a program means on so many devices.

    Raises: StrategyError with everything that `check_program` finds.
    """
    problems = check_program(program, devices)
    if problems:
        raise StrategyError(problems, program.documents)
    mesh = _mesh(program, devices)
    batch_axes = _batch_axes(program, mesh)
    return Layout(
        mesh=mesh,
        batch_axes=batch_axes,
        routes=tuple((axis, _route(program, axis)) for axis in batch_axes),
        warnings=tuple(_overridden(program)),
    )


def check_program(program: Program, devices: int, *, devices_at: Place | None = None) -> list[Problem]:
    """Everything that is wrong with a program on so many devices; `devices_at` is where they were counted."""
    problems = list(_mesh_problems(program, devices, devices_at))
    sizes = _declared_sizes(program, devices)
    problems += _name_problems(program, sizes)
    return problems or list(_sum_problems(program, _mesh(program, devices)))


def check_names(program: Program) -> list[Problem]:
    """Everything that is wrong with a program on any number of devices: unknown axes, dims, tables, routes."""
    return list(_name_problems(program, _declared_sizes(program, None)))


def _meshes(program: Program) -> list[MeshStatement]:
    return [statement for statement in program.statements if isinstance(statement, MeshStatement)]


def _splits(program: Program) -> list[SplitStatement]:
    return [statement for statement in program.statements if isinstance(statement, SplitStatement)]


def _reductions(program: Program) -> list[ReduceStatement]:
    return [statement for statement in program.statements if isinstance(statement, ReduceStatement)]


def _declared_sizes(program: Program, devices: int | None) -> dict[str, int | None]:
    """Axes and their sizes; None where ``*`` cannot be told, or the devices are not known."""
    meshes = _meshes(program)
    if not meshes:
        return {DEFAULT_AXIS: devices}
    axes = meshes[0].axes
    others = math.prod(axis.size for axis in axes if axis.size is not None)
    rest = devices // others if devices and others and devices % others == 0 else None
    return {axis.axis.text: rest if axis.size is None else axis.size for axis in axes}


def _mesh(program: Program, devices: int) -> Mesh:
    sizes = _declared_sizes(program, devices)
    return Mesh(axes=tuple((axis, size) for axis, size in sizes.items() if size is not None))


def _mesh_problems(program: Program, devices: int, devices_at: Place | None) -> Iterator[Problem]:
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


def _axis_problems(axes: Sequence[AxisSize]) -> Iterator[Problem]:
    seen: dict[str, AxisSize] = {}
    star: AxisSize | None = None
    for axis in axes:
        name = axis.axis.text
        if name in seen:
            others = (Place(span=seen[name].span, note=f"{name!r} is declared here first"),)
            yield Problem(span=axis.axis.span, message=f"axis {name!r} is declared twice", others=others)
        seen.setdefault(name, axis)
        if axis.size == 0:
            yield Problem(span=axis.span, message=f"axis {name!r} has size 0; it must be at least 1")
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


def _name_problems(program: Program, sizes: dict[str, int | None]) -> Iterator[Problem]:
    for statement in program.statements:
        if isinstance(statement, SplitStatement):
            for dim in statement.dims:
                yield from _dim_problems(dim)
            yield from _unknown_axes(statement.axes, sizes)
        elif isinstance(statement, ReduceStatement):
            yield from _table_problems(statement.table)
            yield from _unknown_axes(statement.axes, sizes)
            yield from _route_problems(statement.using.name if statement.using else None)


def _dim_problems(dim: Name) -> Iterator[Problem]:
    if dim.text in DIMS and dim.text != "batch":
        hint = "This release splits the batch: SPLIT batch OVER axis."
        yield Problem(span=dim.span, message=f"SPLIT {dim.text} is not in this release", hint=hint)
    elif dim.text != "batch":
        hint = f"dims: {', '.join(DIMS)}.{_did_you_mean(dim.text, DIMS)}"
        yield Problem(span=dim.span, message=f"unknown dim {dim.text!r}", hint=hint)


def _table_problems(table: Name) -> Iterator[Problem]:
    if table.text in TABLES and table.text != "grads":
        hint = "This release sums gradients: REDUCE grads OVER axis."
        yield Problem(span=table.span, message=f"REDUCE {table.text} is not in this release", hint=hint)
    elif table.text != "grads":
        hint = f"tables: {', '.join(TABLES)}.{_did_you_mean(table.text, TABLES)}"
        yield Problem(span=table.span, message=f"unknown table {table.text!r}", hint=hint)


def _route_problems(route: Name | None) -> Iterator[Problem]:
    if route is None or route.text in set(Route):
        return
    if route.text in LATER_ROUTES:
        message = f"REDUCE grads USING {route.text} is not in this release"
        yield Problem(span=route.span, message=message, hint=f"routes of this release: {', '.join(Route)}.")
        return
    hint = f"routes: {', '.join(Route)}.{_did_you_mean(route.text, tuple(Route))}"
    yield Problem(span=route.span, message=f"unknown route {route.text!r}", hint=hint)


def _unknown_axes(axes: Sequence[Name], sizes: dict[str, int | None]) -> Iterator[Problem]:
    for axis in axes:
        if axis.text in sizes:
            continue
        known = ", ".join(f"{name}({'*' if size is None else size})" for name, size in sizes.items())
        hint = f"axes of this mesh: {known}.{_did_you_mean(axis.text, tuple(sizes))}"
        yield Problem(span=axis.span, message=f"unknown mesh axis {axis.text!r}", hint=hint)


def _did_you_mean(word: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"  Did you mean {close[0]!r}?" if close else ""


def _batch_axes(program: Program, mesh: Mesh) -> tuple[str, ...]:
    """The axes that the batch is split over; all of them if no statement says so."""
    named = {axis.text for statement in _splits(program) for axis in statement.axes}
    return tuple(axis for axis, _ in mesh.axes if axis in named or not named)


def _sum_problems(program: Program, mesh: Mesh) -> Iterator[Problem]:
    """Statements that would divide twice, add too often, forget to add, or leave devices doing the same."""
    yield from _repeated_splits(program)
    batch_axes = _batch_axes(program, mesh)
    for axis, size in mesh.axes:
        if axis not in batch_axes and size > 1:
            hint = f"Add SPLIT batch OVER {axis}, or take the axis out of the mesh."
            message = f"no statement splits anything over {axis!r}: its {size} devices would all do the same"
            yield Problem(span=_axis_declaration(program, axis).span, message=message, hint=hint)
    summed = {axis.text for statement in _reductions(program) for axis in statement.axes}
    for statement in _reductions(program):
        yield from _repeated_sums(statement, batch_axes)
    missing = [axis for axis in batch_axes if axis not in summed and mesh.size(axis) > 1]
    if summed and missing:
        statement = _reductions(program)[-1]
        message = f"the batch is split over {', '.join(missing)}, but gradients are not summed over it"
        hint = f"Write REDUCE grads OVER {', '.join(batch_axes)}, or no REDUCE at all."
        yield Problem(span=statement.span, message=message, hint=hint)


def _repeated_sums(statement: ReduceStatement, batch_axes: Sequence[str]) -> Iterator[Problem]:
    hint = f"Sum once over each axis that splits the batch: {', '.join(batch_axes)}."
    for index, axis in enumerate(statement.axes):
        if axis.text in {earlier.text for earlier in statement.axes[:index]}:
            yield Problem(span=axis.span, message=f"gradients are summed over {axis.text!r} twice", hint=hint)
        elif axis.text not in batch_axes:
            message = (
                f"gradients are equal over {axis.text!r}, which splits nothing: a sum would count them twice"
            )
            yield Problem(span=axis.span, message=message, hint=hint)


def _repeated_splits(program: Program) -> Iterator[Problem]:
    first: dict[tuple[str, str], Name] = {}
    for statement in _splits(program):
        for dim, axis in itertools.product(statement.dims, statement.axes):
            earlier = first.setdefault((dim.text, axis.text), dim)
            if earlier is not dim:
                others = (Place(span=earlier.span, note="the first split is here"),)
                message = f"{dim.text!r} is split over {axis.text!r} twice"
                yield Problem(span=dim.span, message=message, others=others, hint="Keep one of the two.")


def _axis_declaration(program: Program, axis: str) -> AxisSize:
    (statement,) = _meshes(program)
    return next(declared for declared in statement.axes if declared.axis.text == axis)


def _route(program: Program, axis: str) -> Route:
    """The route over an axis: the last statement that names one decides."""
    named = [
        statement.using.name.text
        for statement in _reductions(program)
        if statement.using is not None and axis in {name.text for name in statement.axes}
    ]
    return Route(named[-1]) if named else Route.NATIVE


def _overridden(program: Program) -> Iterator[Problem]:
    """Statements whose route a later one replaces on every axis."""
    later: set[str] = set()
    for statement in reversed(_reductions(program)):
        axes = {axis.text for axis in statement.axes}
        if statement.using is not None and axes <= later:
            message = "this statement has no effect: later ones replace its route on every axis"
            yield Problem(span=statement.span, message=message)
        if statement.using is not None:
            later |= axes
