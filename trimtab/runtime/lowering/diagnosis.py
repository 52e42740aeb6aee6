"""What a difference between many ranks and one device looks like: a sum made twice, never, or over other ranks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.runtime.lowering.extents import Layouts
from trimtab.spec import Mesh

Floats = npt.NDArray[np.floating[Any]]

_CLEAN = 1e-3
"""A ratio is told if what it leaves unexplained is less than this part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Looks:
    """How a difference looks.

    Args:
        axis: Of the mesh that explains it; None if none does.
        ratio: Between what was found and what one device has; None if it is not one number.
        cause: The usual one, in a sentence; empty if nothing is known.
    """

    axis: str | None = None
    ratio: float | None = None
    cause: str = ""


class Diagnosis:
    """Explains differences on one mesh."""

    def __init__(self, mesh: Mesh, layouts: Layouts) -> None:
        self._sizes = {axis: size for axis, size in mesh.axes if size > 1}
        self._layouts = layouts

    def of(
        self, found: Mapping[int, Floats], expected: Mapping[int, Floats], *, first: Sequence[str] = ()
    ) -> Looks:
        """Axis, ratio and cause.

        Args:
            found: By rank.
            expected: The same of one device.
            first: Axes that are looked at before the others: of two that explain alike, the one to be told.
        """
        ratio = _ratio(found, expected)
        axes = [*(axis for axis in first if axis in self._sizes), *self._sizes]
        for axis in dict.fromkeys(axes):
            looks = self._summed_wrongly(found, expected, axis, ratio)
            if looks is not None:
                return looks
        if ratio is not None:
            return Looks(ratio=ratio, cause=_of_whole_number(ratio))
        for axis in dict.fromkeys(axes):
            if self._disagree(found, expected, axis):
                cause = f"ranks along {axis} hold different values of what is the same on them: a sum over {axis} is missing"
                return Looks(axis=axis, cause=cause)
        return Looks()

    def _summed_wrongly(
        self, found: Mapping[int, Floats], expected: Mapping[int, Floats], axis: str, ratio: float | None
    ) -> Looks | None:
        """Whether a sum over one axis was made twice, replaced by a mean, or left out."""
        size = self._sizes[axis]
        if all(_is_near(found[rank], expected[rank] * size) for rank in found):
            return Looks(
                axis=axis, ratio=float(size), cause=f"it counts {size} times, once for each rank of {axis}"
            )
        if all(_is_near(found[rank] * size, expected[rank]) for rank in found):
            cause = f"it counts once where the {size} ranks of {axis} add up: a mean for a sum"
            return Looks(axis=axis, ratio=1 / size, cause=cause)
        if len({array.shape for array in found.values()}) > 1:
            return None
        totals = summed(found, [axis], self._layouts)
        if all(_is_near(totals[rank], expected[rank]) for rank in found):
            cause = f"it has not been summed over {axis}: each rank has a summand of its own"
            return Looks(axis=axis, ratio=ratio, cause=cause)
        return None

    def _disagree(self, found: Mapping[int, Floats], expected: Mapping[int, Floats], axis: str) -> bool:
        """Whether ranks that differ in one axis alone hold different values of what is the same."""
        firsts: dict[tuple[int, ...], int] = {}
        for rank in found:
            first = firsts.setdefault(_elsewhere(self._layouts, rank, [axis]), rank)
            is_same = np.array_equal(expected[rank], expected[first])
            if is_same and not _is_near(found[rank], found[first]):
                return True
        return False


def summed(
    arrays: Mapping[int, npt.NDArray[np.float32]], axes: Sequence[str], layouts: Layouts
) -> dict[int, npt.NDArray[np.float32]]:
    """For each rank the sum over those that differ from it in some axes alone."""
    if not axes:
        return dict(arrays)
    totals: dict[tuple[int, ...], npt.NDArray[np.float32]] = {}
    for rank, array in arrays.items():
        key = _elsewhere(layouts, rank, axes)
        totals[key] = totals[key] + array if key in totals else array
    return {rank: totals[_elsewhere(layouts, rank, axes)] for rank in arrays}


def _elsewhere(layouts: Layouts, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
    """Where a rank stands on all other axes."""
    return tuple(at for axis, at in layouts.places[rank].items() if axis not in axes)


def root_mean_square(array: Floats) -> float:
    """Of all elements; 0 for none."""
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0


def _is_near(found: Floats, expected: Floats) -> bool:
    size = root_mean_square(expected) or 1.0
    return found.shape == expected.shape and root_mean_square(found - expected) < _CLEAN * size


def _ratio(found: Mapping[int, Floats], expected: Mapping[int, Floats]) -> float | None:
    """The one number that all ranks' values are multiples by, if there is one."""
    flat_found = _flat(found[rank] for rank in found)
    flat_expected = _flat(expected[rank] for rank in found)
    if flat_found.shape != flat_expected.shape or not np.isfinite(flat_found).all():
        return None
    square = float(flat_expected @ flat_expected)
    if square == 0.0:
        return None
    ratio = float(flat_found @ flat_expected) / square
    rest = root_mean_square(flat_found - ratio * flat_expected) / (root_mean_square(flat_expected) or 1.0)
    return ratio if rest < _CLEAN * max(abs(ratio), 1.0) else None


def _flat(arrays: Iterable[Floats]) -> npt.NDArray[np.float64]:
    return np.concatenate([array.reshape(-1) for array in arrays]).astype(np.float64)


def _of_whole_number(ratio: float) -> str:
    """A sentence for ratios n and 1/n.

    >>> _of_whole_number(8.0), _of_whole_number(0.25), _of_whole_number(1.3)
    ('it counts 8 times', 'a 4th of it counts', '')
    """
    for number, text in ((ratio, "it counts {} times"), (1 / ratio if ratio else 0.0, "a {}th of it counts")):
        if round(number) > 1 and abs(number - round(number)) < _CLEAN * number:
            return text.format(round(number))
    return ""
