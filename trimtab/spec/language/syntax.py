"""The syntax tree of the strategy language: what is written, before it is known what it means.

Two trees are equal if they say the same; where it was written does not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from trimtab.terms import Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Name:
    """A word that the user chose or that names something: an axis, a dim, a table, a route."""

    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisSize:
    """One axis of a mesh.

    Args:
        axis: Its name.
        size: Devices along it; None for ``*``, what the other axes leave over.
        span: Name and size.
    """

    axis: Name
    size: int | None
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshStatement:
    """``MESH dp 4, tp 2``: the grid of devices; the last axis varies fastest."""

    axes: tuple[AxisSize, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitStatement:
    """``SPLIT batch OVER dp``: computation divided along dims of tensors over an axis."""

    dims: tuple[Name, ...]
    axis: Name
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReduceStatement:
    """``REDUCE grads OVER dp USING tree``: what is partial is summed over axes.

    Args:
        table: What is summed.
        axes: Over which axes.
        route: How; None if not said.
        span: The whole statement.
    """

    table: Name
    axes: tuple[Name, ...]
    route: Name | None
    span: Span = field(compare=False)


Statement: TypeAlias = MeshStatement | SplitStatement | ReduceStatement


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Statements in order.

    Args:
        statements: As written; none is a program too, made of defaults.
        documents: The texts that the spans point into, by name.
    """

    statements: tuple[Statement, ...] = ()
    documents: Mapping[str, str] = field(default_factory=dict, compare=False)
