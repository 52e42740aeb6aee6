"""Which elements of a tensor a rank holds, one by one, and how they are cut and joined.

A whole tensor is cut along a dim into equal pieces, the last ones padded; several axes cut one after the other, each
the pieces of the one before. Storage is cut in the flattened piece, at multiples of 16 elements. Nothing here knows
what a plan is.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]
Indices = tuple[int, ...]
Runs = tuple[tuple[int, int], ...]

PADDING = -1
"""Index of an element that is there only to make pieces equal; it is always zero."""
ALIGNMENT = 16
"""Elements: a stored piece is a multiple of it."""


class MisfitError(Exception):
    """Pieces that an operator cannot take: nothing sensible can be computed from them."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The elements of a whole tensor that a piece has.

    Args:
        indices: For each dim the indices in the whole tensor, in order.
        runs: For a piece of storage, the ranges of the flattened tensor of these indices, and where there is
            padding PADDING with its length; None for the tensor itself.
    """

    indices: tuple[Indices, ...]
    runs: Runs | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor that storage is cut from."""
        return tuple(len(indices) for indices in self.indices)

    @property
    def numel(self) -> int:
        """Elements of the tensor that storage is cut from."""
        return math.prod(self.shape)

    def cut(self, dim: int, pieces: int, index: int) -> "Extent":
        """One of equal pieces along a dim."""
        cut = cut_indices(self.indices[dim], pieces, index)
        return Extent((*self.indices[:dim], cut, *self.indices[dim + 1 :]), self.runs)

    def cut_storage(self, pieces: int, index: int) -> "Extent":
        """One of equal pieces of the flattened elements; what was cut before is cut inside."""
        runs = self.runs if self.runs is not None else ((0, self.numel),)
        return Extent(self.indices, cut_runs(runs, pieces, index))


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank holds of a tensor: the elements, and which they are."""

    extent: Extent
    array: Array


def stored_size(elements: int, pieces: int) -> int:
    """Elements of each of equal pieces of storage; what is not cut is not padded."""
    if pieces == 1:
        return elements
    return -(-elements // (pieces * ALIGNMENT)) * ALIGNMENT


@functools.lru_cache(maxsize=65536)
def cut_indices(indices: Indices, pieces: int, index: int) -> Indices:
    """One of equal pieces of an index set; what is missing at the end is padding.

    >>> [cut_indices((5, 6, 7, 8, 9), 2, index) for index in range(2)]
    [(5, 6, 7), (8, 9, -1)]
    """
    size = -(-len(indices) // pieces)
    padded = indices + (PADDING,) * (size * pieces - len(indices))
    return padded[index * size : (index + 1) * size]


@functools.lru_cache(maxsize=65536)
def cut_runs(runs: Runs, pieces: int, index: int) -> Runs:
    """One of equal pieces of storage; what is missing at the end is padding.

    >>> [cut_runs(((0, 40),), 2, index) for index in range(2)]
    [((0, 32),), ((32, 40), (-1, 24))]
    """
    size = stored_size(sum(map(_length, runs)), pieces)
    skipped, missing, found = index * size, size, []
    for run in runs:
        before = min(skipped, _length(run))
        taken = min(_length(run) - before, missing)
        skipped, missing = skipped - before, missing - taken
        if taken:
            is_padding = run[0] == PADDING
            found.append((PADDING, taken) if is_padding else (run[0] + before, run[0] + before + taken))
    return merged_runs((*found, (PADDING, missing)) if missing else found)


def merged_runs(runs: Iterable[tuple[int, int]]) -> Runs:
    """The same elements in as few ranges as can be."""
    found: list[tuple[int, int]] = []
    for start, stop in runs:
        if found and start != PADDING and found[-1][0] != PADDING and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        elif found and start == PADDING and found[-1][0] == PADDING:
            found[-1] = (PADDING, found[-1][1] + stop)
        else:
            found.append((start, stop))
    return tuple(found)


def _length(run: tuple[int, int]) -> int:
    return run[1] if run[0] == PADDING else run[1] - run[0]


@functools.lru_cache(maxsize=65536)
def positions(indices: Indices, wanted: Indices) -> Array:
    """Where each wanted index stands in an index set; -1 where it does not, and for padding."""
    known = {index: place for place, index in enumerate(indices) if index != PADDING}
    return np.array([known.get(index, -1) for index in wanted], dtype=np.int64)


@functools.lru_cache(maxsize=65536)
def as_array(indices: Indices) -> Array:
    """The indices as an array."""
    return np.array(indices, dtype=np.int64)


def take(whole: Array, extent: Extent) -> Array:
    """The elements of a whole tensor that an extent names, padding zero."""
    for dim, indices in enumerate(extent.indices):
        if indices == tuple(range(whole.shape[dim])):
            continue
        whole = _picked(whole, as_array(indices), dim)
    return whole if extent.runs is None else _ranges(whole.reshape(-1), extent.runs)


def restrict(piece: Piece, extent: Extent) -> Piece:
    """The part of a piece that another extent names.

    Raises: MisfitError if the piece does not have all of it.
    """
    if piece.extent == extent:
        return piece
    if piece.extent.runs is not None:
        raise MisfitError("a piece of storage was met where other elements are needed")
    array = piece.array
    for dim, (found, wanted) in enumerate(zip(piece.extent.indices, extent.indices, strict=True)):
        if found == wanted:
            continue
        places = positions(found, wanted)
        if any(place < 0 and index != PADDING for place, index in zip(places, wanted, strict=True)):
            raise MisfitError("a piece does not have the elements that are needed")
        array = _picked(array, places, dim)
    if extent.runs is not None:
        array = _ranges(array.reshape(-1), extent.runs)
    return Piece(extent, array)


def chunks_along(piece: Piece, dim: int, pieces: int) -> list[Piece]:
    """A piece cut along a dim into equal ones."""
    if piece.extent.runs is not None:
        raise MisfitError("storage has no dims to be cut along")
    size = -(-piece.array.shape[dim] // pieces)
    missing = size * pieces - piece.array.shape[dim]
    array = piece.array
    if missing:
        array = np.pad(array, [(0, missing if at == dim else 0) for at in range(array.ndim)])
    parts = np.split(array, pieces, axis=dim)
    return [Piece(piece.extent.cut(dim, pieces, index), part) for index, part in enumerate(parts)]


def chunks_of_storage(piece: Piece, pieces: int) -> list[Piece]:
    """The flattened elements of a piece cut into equal ranges."""
    extents = [piece.extent.cut_storage(pieces, index) for index in range(pieces)]
    flat = piece.array.reshape(-1)
    parts = equal_parts(flat, pieces, stored_size(flat.size, pieces))
    return [Piece(extent, part) for extent, part in zip(extents, parts, strict=True)]


def equal_parts(flat: Array, parts: int, size: int) -> list[Array]:
    """Consecutive parts of one size; zeros where the array ends before."""
    missing = size * parts - flat.size
    if missing:
        flat = np.concatenate([flat, np.zeros(missing, dtype=np.int64)])
    return [flat[index * size : (index + 1) * size] for index in range(parts)]


def join_along(pieces: Sequence[Piece], dim: int, length: int) -> Piece:
    """Pieces put together along a dim; padding behind the first ``length`` elements is let go."""
    if any(piece.extent.runs is not None for piece in pieces):
        raise MisfitError("storage has no dims to be joined along")
    indices = tuple(index for piece in pieces for index in piece.extent.indices[dim])
    array = np.concatenate([piece.array for piece in pieces], axis=dim)
    if len(indices) > length and all(index == PADDING for index in indices[length:]):
        indices = indices[:length]
        array = array.take(np.arange(length), axis=dim)
    first = pieces[0].extent.indices
    return Piece(Extent((*first[:dim], indices, *first[dim + 1 :])), array)


def join_storage(pieces: Sequence[Piece], declared: Extent) -> Piece:
    """Pieces of storage put together; the padding inside, of cuts that are joined, is let go.

    Args:
        pieces: In order of cutting.
        declared: What they shall make: the tensor itself, or a larger piece of storage with its own padding.

    Raises: MisfitError if the tensor itself is asked for and the ranges do not make it.
    """
    runs = merged_runs(run for piece in pieces for run in piece.extent.runs or ((0, piece.extent.numel),))
    flat = np.concatenate([piece.array.reshape(-1) for piece in pieces])
    indices, real = pieces[0].extent.indices, _without_padding(runs)
    if real != _without_padding(declared.runs or ((0, declared.numel),)):
        if declared.runs is None:
            raise MisfitError(f"the ranges {runs} do not make {declared.numel} elements")
        return Piece(Extent(indices, runs), flat)
    flat = flat[np.concatenate([np.full(_length(run), run[0] != PADDING) for run in runs])]
    if declared.runs is None:
        return Piece(Extent(indices), flat.reshape(declared.shape))
    size = sum(map(_length, declared.runs))
    return Piece(Extent(indices, declared.runs), equal_parts(flat, 1, size)[0])


def _without_padding(runs: Runs) -> Runs:
    return merged_runs(run for run in runs if run[0] != PADDING)


def _picked(array: Array, places: Array, dim: int) -> Array:
    """Elements along a dim by place; those at negative places are zero."""
    found = array.take(places, axis=dim)
    if (places < 0).any():
        shape = [-1 if at == dim else 1 for at in range(array.ndim)]
        found = found * (places >= 0).astype(np.int64).reshape(shape)
    return found


def _ranges(flat: Array, runs: Runs) -> Array:
    parts = [np.zeros(stop, dtype=np.int64) if start == PADDING else flat[start:stop] for start, stop in runs]
    return np.concatenate(parts)
