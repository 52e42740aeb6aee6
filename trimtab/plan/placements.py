"""How one tensor lies on the axes of a mesh: the types of the plan.

On each axis a tensor is *replicated* (every rank has all of it), *split* along one of its dims, *stored* (its
flat elements lie in pieces and are gathered before use), *partial* (the ranks hold summands) or *varying* (the
ranks hold different tensors on purpose, as under AVERAGE). A dim may be split over several axes: the axis that
comes first cuts first.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from trimtab.plan.layout import ALIGNMENT


class PlacementKind(StrEnum):
    """What the ranks along an axis hold of a tensor."""

    REPLICATED = "replicated"
    SPLIT = "split"
    STORED = "stored"
    PARTIAL = "partial"
    VARYING = "varying"


_CUTS = (PlacementKind.SPLIT, PlacementKind.STORED)
"""Kinds for which it matters which axis comes first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """A tensor on one axis; ``dim`` is set where it is split."""

    kind: PlacementKind
    dim: str | None = None

    def __str__(self) -> str:
        """``replicated``, ``split heads``, as errors say it."""
        return f"{self.kind.value} {self.dim}" if self.dim else self.kind.value


REPLICATED = Placement(kind=PlacementKind.REPLICATED)
STORED = Placement(kind=PlacementKind.STORED)
PARTIAL = Placement(kind=PlacementKind.PARTIAL)
VARYING = Placement(kind=PlacementKind.VARYING)


def split(dim: str) -> Placement:
    """Cut along a dim."""
    return Placement(kind=PlacementKind.SPLIT, dim=dim)


@dataclass(frozen=True, slots=True)
class Placements:
    """A tensor on every axis, in the order in which the axes cut it; an axis that is not here is replicated."""

    items: tuple[tuple[str, Placement], ...] = ()

    def on(self, axis: str) -> Placement:
        """The placement on one axis."""
        for name, placement in self.items:
            if name == axis:
                return placement
        return REPLICATED

    def put(self, axis: str, placement: Placement) -> "Placements":
        """With another placement on one axis; a new cut comes after those that are there."""
        rest = tuple(item for item in self.items if item[0] != axis)
        if placement == REPLICATED:
            return Placements(rest)
        if self.on(axis) == placement:
            return self
        return Placements((*rest, (axis, placement)))

    def axes_of(self, kind: PlacementKind) -> tuple[str, ...]:
        """The axes on which the tensor is of a kind, in order."""
        return tuple(axis for axis, placement in self.items if placement.kind is kind)

    def axes_cutting(self, dim: str) -> tuple[str, ...]:
        """The axes that split a dim, the first cut first."""
        return tuple(axis for axis, placement in self.items if placement.dim == dim)

    def __iter__(self) -> Iterator[tuple[str, Placement]]:
        """Axes with what is not replicated."""
        return iter(self.items)

    def __str__(self) -> str:
        """``split heads over tp, partial over dp``."""
        return ", ".join(f"{placement} over {axis}" for axis, placement in self.items) or "replicated"

    def is_same(self, other: "Placements") -> bool:
        """Whether both say the same on every axis and cut every dim in the same order."""
        if self.items == other.items:
            return True
        if dict(self.items) != dict(other.items):
            return False
        cuts = {placement for _, placement in self.items if placement.kind in _CUTS}
        return all(
            [axis for axis, found in self.items if found == cut]
            == [axis for axis, found in other.items if found == cut]
            for cut in cuts
        )


def local_shape(
    dims: tuple[str, ...], shape: tuple[int, ...], placements: Placements, sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """Elements along each dim that the largest piece has; ``sizes`` are those of the axes."""
    found = []
    for dim, length in zip(dims, shape, strict=True):
        for axis in placements.axes_cutting(dim):
            length = -(-length // sizes[axis])
        found.append(length)
    return tuple(found)


def local_elements(
    dims: tuple[str, ...], shape: tuple[int, ...], placements: Placements, sizes: Mapping[str, int]
) -> int:
    """Elements that the largest piece has, storage in pieces counted."""
    elements = math.prod(local_shape(dims, shape, placements, sizes))
    pieces = math.prod(sizes[axis] for axis in placements.axes_of(PlacementKind.STORED))
    return stored_elements(elements, pieces)


def stored_elements(elements: int, num_pieces: int) -> int:
    """Elements of each of ``num_pieces`` stored pieces; they begin at multiples of 16 and the last may be padded.

    >>> stored_elements(100, 1), stored_elements(100, 4)
    (100, 32)
    """
    if num_pieces == 1:
        return elements
    return -(-elements // (num_pieces * ALIGNMENT)) * ALIGNMENT
