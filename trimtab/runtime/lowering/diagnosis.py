"""What a difference between many ranks and one device looks like.

A sum made twice, never, or over other ranks; a factor, of all ranks or of each; what another step has; the right numbers in
another order; other elements dropped. Each look is a hypothesis with a test: what it leaves unexplained must be next to
nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.runtime.lowering.extents import Layouts
from trimtab.spec import Mesh
from trimtab.terms import Span

Floats = npt.NDArray[np.floating[Any]]

_CLEAN = 1e-3
"""A ratio is told if what it leaves unexplained is less than this part."""

_FEW = 16
"""Elements below which a ratio of one rank, or an order, says nothing."""

_DROPPED = 0.01
"""Part of the elements that are zero on one side only, from which on a mask is suspected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Looks:
    """How a difference looks.

    Args:
        axis: Of the mesh that explains it; None if none does.
        ratio: Between what was found and what one device has; None if it is not one number.
        ratios: The least and the largest, where each rank has one of its own.
        cause: The usual one, in a sentence; empty if nothing is known.
        line: The statement that brings the cause about, where that is not one over an axis.
    """

    axis: str | None = None
    ratio: float | None = None
    ratios: tuple[float, float] | None = None
    cause: str = ""
    line: Span | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """How often something happens in a plan: a factor that a sum may have too much or too little.

    Args:
        count: So often.
        what: In the plural.
        line: The statement that says so; None if a default does.
    """

    count: int
    what: str
    line: Span | None


class Diagnosis:
    """Explains differences on one mesh."""

    def __init__(self, mesh: Mesh, layouts: Layouts) -> None:
        self._sizes = {axis: size for axis, size in mesh.axes if size > 1}
        self._layouts = layouts

    def of(
        self,
        found: Mapping[int, Floats],
        expected: Mapping[int, Floats],
        *,
        first: Sequence[str] = (),
        numbers: Sequence[Number] = (),
        before: Mapping[int, Floats] | None = None,
    ) -> Looks:
        """The first look that explains what was found; nothing if none does.

        Args:
            found: By rank.
            expected: The same of one device.
            first: Axes that are looked at before the others: of two that explain alike, the one to be told.
            numbers: Of the plan, which factors are compared with, behind those axes and before the others.
            before: What one device had in the step before.
        """
        looks = self._looks(found, expected, first, numbers, before)
        return next((look for look in looks if look is not None), Looks())

    def _looks(
        self,
        found: Mapping[int, Floats],
        expected: Mapping[int, Floats],
        first: Sequence[str],
        numbers: Sequence[Number],
        before: Mapping[int, Floats] | None,
    ) -> Iterator[Looks | None]:
        """What may explain it, the more likely before the less; None for what does not."""
        ratio = _ratio(found, expected)
        first = [axis for axis in dict.fromkeys(first) if axis in self._sizes]
        others = [axis for axis in self._sizes if axis not in first]
        yield from (self._summed_wrongly(found, expected, axis, ratio) for axis in first)
        yield from (_counted_wrongly(ratio, number) for number in numbers)
        yield from (self._summed_wrongly(found, expected, axis, ratio) for axis in others)
        if ratio is not None:
            yield Looks(ratio=ratio, cause=_of_whole_number(ratio))
        if before is not None:
            yield _of_step_before(found, expected, before)
        yield self._scaled_by_rank(found, expected)
        yield _in_another_order(found, expected)
        yield self._dropped_otherwise(found, expected, [*first, *others])
        yield from (self._differing(found, expected, axis) for axis in (*first, *others))

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
            return Looks(axis=axis, ratio=ratio, ratios=_range_of(_own_ratios(found, expected)), cause=cause)
        return None

    def _scaled_by_rank(self, found: Mapping[int, Floats], expected: Mapping[int, Floats]) -> Looks | None:
        """Whether each rank has a factor of its own, as of a mean over its own tokens."""
        if min(array.size for array in found.values()) < _FEW:
            return None
        ratios = _own_ratios(found, expected)
        extremes = _range_of(ratios)
        if extremes is None:
            return None
        axis = next((axis for axis in self._sizes if self._follows(ratios, axis)), None)
        cause = "each rank has a factor of its own: what is divided by is its own count, in place of one count of all ranks"
        return Looks(axis=axis, ratios=extremes, cause=cause)

    def _follows(self, ratios: Mapping[int, float | None], axis: str) -> bool:
        """Whether ranks at one place of an axis have one ratio."""
        by_place: dict[int, list[float]] = {}
        for rank, ratio in ratios.items():
            by_place.setdefault(self._layouts.places[rank][axis], []).append(ratio or 0.0)
        return all(max(same) - min(same) <= _CLEAN * abs(max(same)) for same in by_place.values())

    def _dropped_otherwise(
        self, found: Mapping[int, Floats], expected: Mapping[int, Floats], axes: Sequence[str]
    ) -> Looks | None:
        """Whether other elements are zero, and all that are not are equal."""
        flat_found, flat_expected = _flats(found, expected)
        if flat_found.shape != flat_expected.shape or not flat_found.size:
            return None
        is_one_sided = (flat_found == 0.0) != (flat_expected == 0.0)
        part = float(is_one_sided.mean())
        if part < _DROPPED or not _is_near(flat_found[~is_one_sided], flat_expected[~is_one_sided]):
            return None
        axis = next((axis for axis in axes if self._disagree(found, expected, axis)), None)
        cause = (
            f"{part:.0%} of its elements are zero there or on one device and not on both, and all others are equal: the "
            "mask was drawn from other random numbers"
        )
        return Looks(axis=axis, cause=cause)

    def _differing(
        self, found: Mapping[int, Floats], expected: Mapping[int, Floats], axis: str
    ) -> Looks | None:
        if not self._disagree(found, expected, axis):
            return None
        cause = f"ranks along {axis} hold different values of what is the same on them: a sum over {axis} is missing"
        return Looks(axis=axis, cause=cause)

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
    flat_found, flat_expected = _flats(found, expected)
    if flat_found.shape != flat_expected.shape or not np.isfinite(flat_found).all():
        return None
    square = float(flat_expected @ flat_expected)
    if square == 0.0:
        return None
    ratio = float(flat_found @ flat_expected) / square
    rest = root_mean_square(flat_found - ratio * flat_expected) / (root_mean_square(flat_expected) or 1.0)
    return ratio if rest < _CLEAN * max(abs(ratio), 1.0) else None


def _own_ratios(found: Mapping[int, Floats], expected: Mapping[int, Floats]) -> Mapping[int, float | None]:
    """By rank, the number that its values are multiples by."""
    return {rank: _ratio({rank: array}, expected) for rank, array in found.items()}


def _range_of(ratios: Mapping[int, float | None]) -> tuple[float, float] | None:
    """The least and the largest; None if a rank has none, or all have the same."""
    known = [ratio for ratio in ratios.values() if ratio is not None]
    if len(known) < len(ratios) or max(known) - min(known) <= _CLEAN * abs(max(known)):
        return None
    return min(known), max(known)


def _counted_wrongly(ratio: float | None, number: Number) -> Looks | None:
    """Whether a number of the plan is a factor too many or too few."""
    if ratio is None or number.count < 2:
        return None
    if abs(ratio - number.count) < _CLEAN * number.count:
        words = f"it counts {number.count} times: once for each of the {number.count} {number.what}"
        return Looks(ratio=ratio, cause=words, line=number.line)
    if abs(ratio * number.count - 1) < _CLEAN:
        words = (
            f"1/{number.count} of it counts: it was divided by the {number.count} {number.what}, which add up"
        )
        return Looks(ratio=ratio, cause=words, line=number.line)
    return None


def of_movement(
    found: Mapping[int, Floats], expected: Mapping[int, Floats], before: Mapping[int, Floats]
) -> float | None:
    """How many times as far as on one device weights have moved in a step; None if it is not one number.

    Args:
        found: Weights after the step, by rank.
        expected: The same of one device.
        before: Of one device, before the step.
    """
    moved = {rank: array - before[rank] for rank, array in found.items()}
    return _ratio(moved, {rank: expected[rank] - before[rank] for rank in found})


def _of_step_before(
    found: Mapping[int, Floats], expected: Mapping[int, Floats], before: Mapping[int, Floats]
) -> Looks | None:
    """Whether ranks that differ hold what one device had in the step before."""
    if all(_is_near(found[rank], expected[rank]) or _is_near(found[rank], before[rank]) for rank in found):
        return Looks(
            cause="it is that of the step before: a buffer was read before this step's values were in it"
        )
    return None


def _in_another_order(found: Mapping[int, Floats], expected: Mapping[int, Floats]) -> Looks | None:
    """Whether the elements are right and stand in wrong places."""
    flat_found, flat_expected = _flats(found, expected)
    if flat_found.shape != flat_expected.shape or flat_found.size < _FEW:
        return None
    if not np.isfinite(flat_found).all():
        return None
    sorted_difference = root_mean_square(np.sort(flat_found) - np.sort(flat_expected))
    if sorted_difference >= _CLEAN * root_mean_square(flat_found - flat_expected):
        return None
    return Looks(
        cause="it has the right elements in other places: pieces were cut, sent or put together in another order of memory, "
        "as of a tensor that is not contiguous"
    )


def _flats(
    found: Mapping[int, Floats], expected: Mapping[int, Floats]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """All ranks' elements in one array, of both sides."""
    return _flat(found[rank] for rank in found), _flat(expected[rank] for rank in found)


def _flat(arrays: Iterable[Floats]) -> npt.NDArray[np.float64]:
    return np.concatenate([array.reshape(-1) for array in arrays]).astype(np.float64)


def _of_whole_number(ratio: float) -> str:
    """A sentence for ratios n and 1/n.

    >>> _of_whole_number(8.0), _of_whole_number(0.25), _of_whole_number(1.3)
    ('it counts 8 times', '1/4 of it counts', '')
    """
    for number, text in ((ratio, "it counts {} times"), (1 / ratio if ratio else 0.0, "1/{} of it counts")):
        if round(number) > 1 and abs(number - round(number)) < _CLEAN * number:
            return text.format(round(number))
    return ""
