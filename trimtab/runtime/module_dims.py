"""What are the parameters of a user's module, and what are their axes called?

A module may say it itself, with an attribute or a method ``dims`` from patterns of parameter names to the
names of their axes, outermost first; the last pattern that fits decides:

    dims = {"blocks.*.mix.weight": ("heads", "embed")}

What it does not say is inferred. An axis of which nothing is known is called by its size, ``d1024``: it can be
stored in pieces, and no formula splits it by name.
"""

import inspect
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase

from torch import nn

from trimtab.runtime.dim_inference import DimInference, Dims, expert_of
from trimtab.terms import InputError, nearest_name


class Provenance(StrEnum):
    """How the names of a row's axes are known."""

    INFERRED = "inferred"
    ANNOTATED = "annotated"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleParameter:
    """One parameter of a module, tied ones once.

    Args:
        name: As in the state dict.
        shape: Elements along each axis.
        dims: Names of the axes.
        kind: ``embedding``, ``norm``, ``linear``, ``expert``, ``router`` or ``head``.
        layer: Counted from 0 over all stacks of layers; None outside of them.
        expert: Which of the separate modules of experts it belongs to; None for one tensor of all of them.
        is_trained: Whether it has a gradient.
        provenance: How the dims are known.
        reason: What they follow from, in a few words.
    """

    name: str
    shape: tuple[int, ...]
    dims: Dims
    kind: str
    layer: int | None
    expert: int | None
    is_trained: bool
    provenance: Provenance
    reason: str

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def module_parameters(module: nn.Module, name: str) -> tuple[ModuleParameter, ...]:
    """The parameters of a module with named axes, in the module's order.

    One dim has one size. Where inference gives a name to axes of several sizes, the annotated size keeps it,
    else the most frequent.

    Args:
        module: May stand on ``meta``; no value is read.
        name: What errors call it.

    Raises: InputError for annotations that fit no parameter, have another number of axes, or give one dim
        two sizes or two axes of one parameter.
    """
    annotations = _annotations(module, name)
    parameters = [_annotated(parameter, annotations, name) for parameter in _inferred(module)]
    _refuse_unfitting(annotations, parameters, name)
    return _with_one_size_a_dim(parameters, name)


def _inferred(module: nn.Module) -> Iterator[ModuleParameter]:
    """Every parameter once, as far as it can be seen."""
    inference = DimInference(module)
    for name, parameter in module.named_parameters():
        shape = tuple(parameter.shape)
        inferred = inference.infer(name, shape)
        yield ModuleParameter(
            name=name,
            shape=shape,
            dims=inferred.dims,
            kind=inferred.kind,
            layer=inference.layer_of(name),
            expert=expert_of(name),
            is_trained=parameter.requires_grad,
            provenance=Provenance.INFERRED,
            reason=inferred.reason,
        )


# Annotations.


def _annotations(module: nn.Module, name: str) -> Mapping[str, Dims]:
    """What the module says of its own dims: nothing if its attribute ``dims`` is something else.

    Raises: InputError if it maps something else than patterns to names.
    """
    said = getattr(module, "dims", None)
    if inspect.ismethod(said):
        said = said()
    if not isinstance(said, Mapping):
        return {}
    for pattern, dims in said.items():
        is_names = isinstance(dims, tuple | list) and all(
            isinstance(dim, str) and dim.isidentifier() for dim in dims
        )
        if not isinstance(pattern, str) or not is_names:
            raise InputError(
                f"model {name!r}: dims maps {pattern!r} to {dims!r}; it takes a pattern of parameter names and a "
                "tuple of dims, such as {'layers.*.wq.weight': ('heads', 'embed')}"
            )
    return {pattern: tuple(dims) for pattern, dims in said.items()}


def _annotated(parameter: ModuleParameter, annotations: Mapping[str, Dims], name: str) -> ModuleParameter:
    """The parameter with the dims of the last annotation that fits it, if one does."""
    fitting = [pattern for pattern in annotations if fnmatchcase(parameter.name, pattern)]
    if not fitting:
        return parameter
    pattern, dims = fitting[-1], annotations[fitting[-1]]
    if len(dims) != len(parameter.shape) or len(set(dims)) != len(dims):
        raise InputError(
            f"model {name!r}: dims says {dims} of {pattern!r}; {parameter.name} has the shape "
            f"{list(parameter.shape)}, and each axis takes a name of its own"
        )
    return replace(parameter, dims=dims, provenance=Provenance.ANNOTATED, reason=f"dims[{pattern!r}]")


def _refuse_unfitting(
    annotations: Mapping[str, Dims], parameters: Sequence[ModuleParameter], name: str
) -> None:
    names = [parameter.name for parameter in parameters]
    for pattern in annotations:
        if not any(fnmatchcase(found, pattern) for found in names):
            near = nearest_name(pattern, names)
            question = f"  Did you mean {near!r}?" if near else ""
            raise InputError(f"model {name!r}: dims names {pattern!r}, which fits no parameter.{question}")


# One dim, one size.


def _with_one_size_a_dim(parameters: Sequence[ModuleParameter], name: str) -> tuple[ModuleParameter, ...]:
    """The parameters, with every axis called by its size whose dim is known by another."""
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for parameter in parameters:
        for dim, size in zip(parameter.dims, parameter.shape, strict=True):
            counts[dim][size] += 1
    kept = {dim: sizes.most_common(1)[0][0] for dim, sizes in counts.items()} | _annotated_sizes(
        parameters, name
    )
    return tuple(
        replace(
            parameter,
            dims=tuple(
                dim if kept[dim] == size else f"d{size}"
                for dim, size in zip(parameter.dims, parameter.shape, strict=True)
            ),
        )
        for parameter in parameters
    )


def _annotated_sizes(parameters: Sequence[ModuleParameter], name: str) -> dict[str, int]:
    """The size of each annotated dim.

    Raises: InputError if one has two.
    """
    first: dict[str, tuple[int, str]] = {}
    for parameter in parameters:
        if parameter.provenance is not Provenance.ANNOTATED:
            continue
        for dim, size in zip(parameter.dims, parameter.shape, strict=True):
            known, where = first.setdefault(dim, (size, parameter.name))
            if known != size:
                raise InputError(
                    f"model {name!r}: dims calls an axis of {known} in {where} and one of {size} in "
                    f"{parameter.name} both {dim!r}; give one of them another name"
                )
    return {dim: size for dim, (size, _) in first.items()}
