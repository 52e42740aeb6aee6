"""Pieces against whole tensors: the first difference, and what it looks like."""

from collections.abc import Mapping, Sequence

import numpy as np

from symbolic_data import WrongError
from symbolic_integers import MODULUS
from symbolic_pieces import Array, take
from symbolic_plan import Mesh, Value
from symbolic_ranks import Held


def check_held(what: str, held: Held, wholes: Mapping[int, Array], mesh: Mesh, declared: Value) -> None:
    """Compare what ranks hold with the tensor of one device.

    Args:
        what: Name of the tensor.
        held: By rank.
        wholes: For each rank that must hold a part of it, the tensor that it must be a part of.
        mesh: Of the ranks.
        declared: How it must lie; where it is partial the ranks' summands are added first.

    Raises: WrongError.
    """
    extents = mesh.extents(declared)
    for rank in wholes:
        if rank not in held:
            raise WrongError(f"{what}: rank {rank} does not have it")
        if held[rank].extent != extents[rank]:
            raise WrongError(f"{what}: rank {rank} has other elements of it than its layout says")
    found = {rank: held[rank].array for rank in wholes}
    partial = declared.axes_of("partial")
    if partial:
        found = _summed(found, mesh, partial)
    _check(what, found, {rank: take(whole, extents[rank]) for rank, whole in wholes.items()}, mesh)


def check_numbers(what: str, held: Held, expected: Mapping[int, int], mesh: Mesh) -> None:
    """Compare a number that ranks must know.

    Raises: WrongError.
    """
    missing = [rank for rank in expected if rank not in held]
    if missing:
        raise WrongError(f"{what}: rank {missing[0]} does not know it")
    found = {rank: held[rank].array for rank in expected}
    _check(what, found, {rank: np.asarray(number) for rank, number in expected.items()}, mesh)


def _summed(found: Mapping[int, Array], mesh: Mesh, axes: Sequence[str]) -> dict[int, Array]:
    """For each group the sum of its summands, at all its ranks."""
    totals: dict[int, Array] = {}
    for group in mesh.groups(axes):
        members = [rank for rank in group if rank in found]
        if members:
            total = sum((found[rank] for rank in members), np.int64(0))
            totals |= dict.fromkeys(members, np.asarray(total))
    return totals


def _check(what: str, found: Mapping[int, Array], expected: Mapping[int, Array], mesh: Mesh) -> None:
    wrong = [rank for rank in found if not np.array_equal(found[rank] % MODULUS, expected[rank])]
    if wrong:
        guess = _diagnosis(found, expected, mesh)
        raise WrongError(
            f"{what}: rank {wrong[0]} ({len(wrong)} of {len(found)} ranks) has another value{guess}"
        )


def _diagnosis(found: Mapping[int, Array], expected: Mapping[int, Array], mesh: Mesh) -> str:
    """What the difference looks like: a sum that is missing over an axis, or made twice; where replicas disagree."""
    for axis in mesh.axes:
        size = mesh.sizes[axis]
        if size == 1:
            continue
        totals = _summed(found, mesh, [axis]) if _fit(found, mesh, axis) else {}
        if totals and all(np.array_equal(totals[rank] % MODULUS, expected[rank]) for rank in totals):
            return f": it has not been summed over {axis}"
        if all(np.array_equal(found[rank] % MODULUS, expected[rank] * size % MODULUS) for rank in found):
            return f": it counts {size} times, the ranks of {axis}"
    for axis in mesh.axes:
        for group in mesh.groups([axis]):
            members = [rank for rank in group if rank in found]
            same = [rank for rank in members[1:] if np.array_equal(expected[rank], expected[members[0]])]
            if any(not np.array_equal(found[rank], found[members[0]]) for rank in same):
                return f": ranks along {axis} disagree"
    return ""


def _fit(found: Mapping[int, Array], mesh: Mesh, axis: str) -> bool:
    groups = ([found[rank].shape for rank in group if rank in found] for group in mesh.groups([axis]))
    return all(len(set(shapes)) <= 1 for shapes in groups)
