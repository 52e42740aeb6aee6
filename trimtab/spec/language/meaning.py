"""What a program means on a given number of devices, as far as its text alone can tell.

Checked here: every word names something and stands where it may; the mesh has as many places as there are
devices; and in a program that splits nothing but the batch, what is split over an axis is summed over that
axis, and nothing else is.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trimtab.spec.errors import Place, Problem, StrategyError
from trimtab.spec.language.meshes import Mesh, declared_sizes, mesh_problems, resolve_mesh
from trimtab.spec.language.names import name_problems
from trimtab.spec.language.presets import name_uses
from trimtab.spec.language.syntax import (
    AxisSize,
    MeshStatement,
    Name,
    PlaceStatement,
    Program,
    ReduceStatement,
    SplitStatement,
    Statement,
)
from trimtab.spec.language.wording import first_problems


class Route(StrEnum):
    """How a sum over an axis travels; the order of addition is another matter."""

    NATIVE = "native"
    RING = "ring"
    TREE = "tree"
    RECURSIVE_DOUBLING = "recursive_doubling"
    REDUCE_SCATTER = "reduce_scatter"
    HIERARCHICAL = "hierarchical"


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


def resolve_layout(program: Program, devices: int) -> Layout:
    """What a program means on so many devices.

    Raises: StrategyError with everything that `check_program` finds.
    """
    problems = check_program(program, devices)
    if problems:
        raise StrategyError(problems, program.documents)
    mesh = resolve_mesh(program, devices)
    batch_axes = _batch_axes(program, mesh)
    return Layout(
        mesh=mesh,
        batch_axes=batch_axes,
        routes=tuple((axis, _route(program, axis)) for axis in batch_axes),
        warnings=tuple(name_uses(list(_overridden(program)), program)),
    )


def num_replicas(program: Program, devices: int) -> int:
    """Ranks that compute different samples: along the axes that split the batch.

    For a mesh that cannot stand on so many devices it is the devices: `check_program` refuses it.
    """
    if any(mesh_problems(program, devices, None)):
        return devices
    mesh = resolve_mesh(program, devices)
    named = dict(mesh.axes)
    return math.prod(named[axis] for axis in _batch_axes(program, mesh) if axis in named)


def check_program(program: Program, devices: int, *, devices_at: Place | None = None) -> list[Problem]:
    """Everything that is wrong with a program on so many devices; `devices_at` is where they were counted."""
    found = first_problems(
        itertools.chain(
            mesh_problems(program, devices, devices_at),
            name_problems(program, declared_sizes(program, devices)),
        )
    )
    if not found and _splits_only_batch(program):
        found = first_problems(_sum_problems(program, resolve_mesh(program, devices)))
    return name_uses(found, program)


def check_names(program: Program, *, are_axes_known: bool = True) -> list[Problem]:
    """Everything that is wrong with a program on any number of devices: words that name nothing here.

    Args:
        program: The program.
        are_axes_known: False if its MESH could not be read, so that any axis may be right.
    """
    sizes = declared_sizes(program, None) if are_axes_known else None
    return name_uses(first_problems(name_problems(program, sizes)), program)


def is_batch_split(statement: Statement) -> bool:
    """Whether a statement says over which axes the batch is split."""
    return isinstance(statement, SplitStatement) and any(dim.text == "batch" for dim in statement.dims)


def _splits(program: Program) -> list[SplitStatement]:
    return [statement for statement in program.statements if isinstance(statement, SplitStatement)]


def _reductions(program: Program) -> list[ReduceStatement]:
    return [statement for statement in program.statements if isinstance(statement, ReduceStatement)]


def _splits_only_batch(program: Program) -> bool:
    """Whether gradients are partial over the axes of the batch, on every device and for every row alike."""
    return all(_concerns_batch_only(statement) for statement in program.statements)


def _concerns_batch_only(statement: Statement) -> bool:
    match statement:
        case MeshStatement():
            return True
        case SplitStatement(dims=dims, table=None, where=None, on=None):
            return all(dim.text == "batch" for dim in dims)
        case ReduceStatement(where=None, on=None):
            return True
        case _:
            return False


def _batch_axes(program: Program, mesh: Mesh) -> tuple[str, ...]:
    """The axes that the batch is split over: as said, else those that no other statement divides anything by."""
    named = {
        axis.text for statement in _splits(program) if is_batch_split(statement) for axis in statement.axes
    }
    if named:
        return tuple(axis for axis, _ in mesh.axes if axis in named)
    used = {axis.text for statement in _splits(program) for axis in statement.axes}
    used |= {statement.axis.text for statement in program.statements if isinstance(statement, PlaceStatement)}
    return tuple(axis for axis, _ in mesh.axes if axis not in used)


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
        yield from _needless_sums(statement, batch_axes)
    missing = [axis for axis in batch_axes if axis not in summed and mesh.size(axis) > 1]
    if summed and missing:
        statement = _reductions(program)[-1]
        message = f"the batch is split over {', '.join(missing)}, but gradients are not summed over it"
        hint = f"Write REDUCE grads OVER {', '.join(batch_axes)}, or no REDUCE at all."
        yield Problem(span=statement.span, message=message, hint=hint)


def _needless_sums(statement: ReduceStatement, batch_axes: Sequence[str]) -> Iterator[Problem]:
    hint = f"Sum once over each axis that splits the batch: {', '.join(batch_axes)}."
    for axis in statement.axes:
        if axis.text not in batch_axes:
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
    (mesh,) = (statement for statement in program.statements if isinstance(statement, MeshStatement))
    return next(declared for declared in mesh.axes if declared.axis.text == axis)


def _route(program: Program, axis: str) -> Route:
    """The route over an axis: the last statement that names one decides."""
    named = [
        statement.using.name.text
        for statement in _reductions(program)
        if statement.using is not None and axis in {name.text for name in statement.axes}
    ]
    return Route(named[-1]) if named and named[-1] != "default" else Route.NATIVE


def _overridden(program: Program) -> Iterator[Problem]:
    """Statements whose route a later one replaces on every axis, for every row and device, and that say no more."""
    later: set[str] = set()
    for statement in reversed(_reductions(program)):
        axes = {axis.text for axis in statement.axes}
        if _says_a_route_only(statement) and axes <= later:
            message = "this statement has no effect: later ones replace its route on every axis"
            yield Problem(span=statement.span, message=message)
        if statement.using is not None and statement.where is None and statement.on is None:
            later |= axes


def _says_a_route_only(statement: ReduceStatement) -> bool:
    others = (statement.bucket_bytes, statement.compress, statement.wire)
    return statement.using is not None and all(value is None for value in others)
