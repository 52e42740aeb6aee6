"""What the axes of a mesh are for, told by what is split over them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.spec.job_files import LoadedJob
from trimtab.spec.language import MeshStatement, SplitStatement

TENSOR_DIMS = frozenset({"heads", "kv_heads", "mlp", "vocab"})
"""The dims that tensor parallelism splits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """The axes of a mesh by what they divide, each group outermost first.

    Args:
        sizes: Devices along each axis, outermost axis first.
        batch: Axes that the batch is split over.
        tensor: Axes that matrices are split over.
        context: Axes that whole sequences are split over.
        experts: Axes that experts are split over, some of the others among them.
        stages: Axes that layers are split over.
    """

    sizes: Mapping[str, int]
    batch: tuple[str, ...]
    tensor: tuple[str, ...]
    context: tuple[str, ...]
    experts: tuple[str, ...]
    stages: tuple[str, ...]

    def size(self, axes: Sequence[str]) -> int:
        """Devices along some axes."""
        return math.prod(self.sizes[axis] for axis in axes)

    @property
    def sums(self) -> tuple[str, ...]:
        """The axes that gradients are summed over."""
        return (*self.batch, *self.context)

    def has_order(self, *, stages_inside: bool = False) -> bool:
        """Whether axes stand as Megatron-LM and DeepSpeed number ranks: stages, data, context, tensor, outermost first.

        Args:
            stages_inside: Data before stages, the other order that it knows.
        """
        inner = [*self.context, *self.tensor]
        data = [axis for axis in self.sizes if axis not in (*inner, *self.stages)]
        return list(self.sizes) == (
            [*data, *self.stages, *inner] if stages_inside else [*self.stages, *data, *inner]
        )

    @property
    def unused(self) -> tuple[str, ...]:
        """Axes of more than one device that nothing known is split over."""
        known = {*self.batch, *self.tensor, *self.context, *self.experts, *self.stages}
        return tuple(axis for axis, size in self.sizes.items() if size > 1 and axis not in known)


def find_roles(loaded: LoadedJob) -> Roles:
    """What each axis of a job's mesh is for."""
    found: dict[str, dict[str, None]] = {role: {} for role in ("tensor", "context", "experts", "stages")}
    for statement in loaded.program.statements:
        if isinstance(statement, SplitStatement) and (role := role_of(statement)) in found:
            found[role] |= dict.fromkeys(axis.text for axis in statement.axes)
    sizes = dict(loaded.layout.mesh.axes)
    in_order = {role: tuple(axis for axis in sizes if axis in axes) for role, axes in found.items()}
    return Roles(
        sizes=sizes,
        batch=loaded.layout.batch_axes,
        tensor=in_order["tensor"],
        context=in_order["context"],
        experts=in_order["experts"],
        stages=in_order["stages"],
    )


def role_of(statement: SplitStatement) -> str:
    """Which kind of parallelism a statement is; empty for one of our own."""
    dims = {dim.text for dim in statement.dims}
    if statement.on is not None:
        return ""
    if dims <= TENSOR_DIMS and statement.table is None and statement.where is None:
        return "tensor"
    if len(dims) > 1:
        return ""
    (dim,) = dims
    if dim == "sequence":
        return "context" if statement.where is None else "sequence"
    return {"batch": "batch", "experts": "experts", "layers": "stages"}.get(dim, "")


def has_levels(loaded: LoadedJob) -> bool:
    """Whether the mesh demands that an axis stays inside a level of the cluster."""
    meshes = (found for found in loaded.program.statements if isinstance(found, MeshStatement))
    return any(axis.within is not None for mesh in meshes for axis in mesh.axes)
