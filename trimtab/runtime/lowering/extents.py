"""Which elements of a tensor does each rank hold?

A dim is cut into equal runs, the last ones padded; several axes cut one after the other, each the run of the one
before. Storage is cut in the flattened piece, at multiples of 16 elements. Every collective follows from extents:
what a rank must send is what of its own extent stands in the other's.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.plan.meshes import coordinates
from trimtab.plan.placements import PlacementKind, Placements, stored_elements
from trimtab.plan.program import Value
from trimtab.spec import Mesh


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive indices: real ones from ``start``, then padding up to ``length``."""

    start: int
    real: int
    length: int

    def cut(self, pieces: int, index: int) -> "Run":
        """One of equal pieces.

        >>> Run(0, 5, 5).cut(2, 0), Run(0, 5, 5).cut(2, 1)
        (Run(start=0, real=3, length=3), Run(start=3, real=2, length=3))
        """
        return self._part(-(-self.length // pieces), index)

    def cut_storage(self, pieces: int, index: int) -> "Run":
        """One of equal pieces that begin at multiples of 16.

        >>> Run(0, 40, 40).cut_storage(2, 1)
        Run(start=32, real=8, length=32)
        """
        return self._part(stored_elements(self.length, pieces), index)

    def _part(self, size: int, index: int) -> "Run":
        return Run(self.start + index * size, min(max(self.real - index * size, 0), size), size)

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is padding."""
        return self.real == self.length


@dataclass(frozen=True, slots=True)
class Extent:
    """The elements of a logical tensor that a rank holds.

    Args:
        dims: A run of indices along each dim.
        stored: For a piece of storage, the run of the flattened elements of ``dims``; the piece is then flat.
    """

    dims: tuple[Run, ...]
    stored: Run | None = None

    @classmethod
    def of(cls, shape: Sequence[int]) -> "Extent":
        """All of a tensor."""
        return cls(tuple(Run(0, length, length) for length in shape))

    @property
    def cut_shape(self) -> tuple[int, ...]:
        """Of the tensor, before storage cuts it."""
        return tuple(run.length for run in self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what the rank holds, padding included."""
        return (self.stored.length,) if self.stored is not None else self.cut_shape

    @property
    def flat(self) -> Run:
        """The run of flattened elements."""
        if self.stored is not None:
            return self.stored
        numel = 1
        for length in self.cut_shape:
            numel *= length
        return Run(0, numel, numel)

    def with_dim(self, index: int, run: Run) -> "Extent":
        """With another run along one dim."""
        return replace(self, dims=(*self.dims[:index], run, *self.dims[index + 1 :]))


class Layouts:
    """Extents of values on the ranks of a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.sizes: Mapping[str, int] = dict(mesh.axes)
        self.places = tuple(coordinates(mesh, rank) for rank in range(mesh.num_devices))
        self.extent = functools.lru_cache(maxsize=None)(self._extent)

    def numel(self, value: Value, rank: int) -> int:
        """Elements that a rank has of a value, padding included."""
        return self.extent(value.dims, value.shape, value.placements, rank).flat.length

    def _extent(
        self, dims: tuple[str, ...], shape: tuple[int, ...], placements: Placements, rank: int
    ) -> Extent:
        """What a rank has of a tensor that lies so."""
        place = self.places[rank]
        runs = {dim: Run(0, length, length) for dim, length in zip(dims, shape, strict=True)}
        for axis, placement in placements:
            if placement.dim is not None:
                runs[placement.dim] = runs[placement.dim].cut(self.sizes[axis], place[axis])
        extent = Extent(tuple(runs[dim] for dim in dims))
        stored_axes = placements.axes_of(PlacementKind.STORED)
        if not stored_axes:
            return extent
        stored = extent.flat
        for axis in stored_axes:
            stored = stored.cut_storage(self.sizes[axis], place[axis])
        return replace(extent, stored=stored)


def take(whole: Tensor, extent: Extent) -> Tensor:
    """A rank's piece of a logical tensor, contiguous and its own; padding is zero."""
    for dim, run in enumerate(extent.dims):
        whole = _narrowed(whole, dim, run.start, run)
    if extent.stored is not None:
        whole = _narrowed(whole.reshape(-1), 0, extent.stored.start, extent.stored)
    return whole.contiguous().clone()


def cut(piece: Tensor, held: Extent, wanted: Extent) -> Tensor:
    """The part of a held piece that another extent names, contiguous; it must lie inside the held one."""
    if wanted.stored is not None:
        flat = held.flat
        return _narrowed(piece.reshape(-1), 0, wanted.stored.start - flat.start, wanted.stored).contiguous()
    for dim, (before, after) in enumerate(zip(held.dims, wanted.dims, strict=True)):
        if before != after:
            piece = _narrowed(piece, dim, after.start - before.start, after)
    return piece.contiguous()


def assemble(pieces: Sequence[tuple[Tensor, Extent]], wanted: Extent) -> Tensor:
    """Pieces put together; what none of them has is zero."""
    first = pieces[0][0]
    if any(extent.stored is not None for _, extent in pieces):
        run = wanted.flat
        flat = torch.zeros(run.length, dtype=first.dtype, device=first.device)
        for piece, extent in pieces:
            found = extent.flat
            start = found.start - run.start
            length = min(found.real, run.length - start)
            if length > 0:
                flat[start : start + length] = piece.reshape(-1)[:length]
        return flat.view(wanted.shape)
    joined = torch.zeros(wanted.shape, dtype=first.dtype, device=first.device)
    for piece, extent in pieces:
        source, target = [], []
        for found, run in zip(extent.dims, wanted.dims, strict=True):
            start = found.start - run.start
            source.append(slice(0, found.real))
            target.append(slice(start, start + found.real))
        joined[tuple(target)] = piece[tuple(source)]
    return joined


def _narrowed(tensor: Tensor, dim: int, start: int, run: Run) -> Tensor:
    """``run.length`` elements from ``start`` on, of which those behind ``run.real`` are zero."""
    if start == 0 and run.is_whole and run.length == tensor.shape[dim]:
        return tensor
    found = tensor.narrow(dim, start, run.real) if run.real else tensor.narrow(dim, 0, 0)
    missing = run.length - run.real
    if not missing:
        return found
    behind = tensor.dim() - 1 - dim
    return functional.pad(found, (0, 0) * behind + (0, missing))
