"""How a tensor gets from one layout to another: one step an axis, each a collective or a cut.

| from | to | step |
|---|---|---|
| partial | replicated | all-reduce |
| partial | split, stored | reduce-scatter |
| split, stored | replicated | all-gather |
| split | split along another dim | all-to-all |
| replicated | split, stored | slice, nothing is sent |
"""

import functools
from dataclasses import dataclass

from trimtab.plan.placements import REPLICATED, Placement, PlacementKind, Placements
from trimtab.plan.program import OperatorKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One change, on one axis or on several that are cut or joined alike.

    Args:
        kind: The operator.
        axes: In cutting order.
        before: The placement on each of them.
        after: The same.
        result: The whole layout after the step.
    """

    kind: OperatorKind
    axes: tuple[str, ...]
    before: Placement
    after: Placement
    result: Placements


class InterleavedError(Exception):
    """A piece would have to be put together from the middle.

    Args:
        axis: That cannot be joined before the others are.
        dim: That it cuts.
    """

    def __init__(self, axis: str, dim: str) -> None:
        self.axis = axis
        self.dim = dim
        super().__init__(f"{dim} is cut over {axis} first and again inside")


_KINDS = {
    (PlacementKind.PARTIAL, PlacementKind.REPLICATED): OperatorKind.ALL_REDUCE,
    (PlacementKind.PARTIAL, PlacementKind.SPLIT): OperatorKind.REDUCE_SCATTER,
    (PlacementKind.PARTIAL, PlacementKind.STORED): OperatorKind.REDUCE_SCATTER,
    (PlacementKind.SPLIT, PlacementKind.REPLICATED): OperatorKind.ALL_GATHER,
    (PlacementKind.STORED, PlacementKind.REPLICATED): OperatorKind.ALL_GATHER,
    (PlacementKind.SPLIT, PlacementKind.SPLIT): OperatorKind.ALL_TO_ALL,
    (PlacementKind.REPLICATED, PlacementKind.SPLIT): OperatorKind.SLICE,
    (PlacementKind.REPLICATED, PlacementKind.STORED): OperatorKind.SLICE,
}


@functools.lru_cache(maxsize=4096)
def transitions(source: Placements, target: Placements) -> tuple[Step, ...]:
    """The steps from one layout to another; none if they are the same.

    Pieces of storage that would stand inside others are joined first. What the target cuts is cut next, in its
    order; what it does not cut is joined last, innermost first.

    Raises: InterleavedError if a dim would have to be joined while something inside it stays cut.
    """
    steps: list[Step] = []
    current = source
    for axis in _stored_inside(source, target):
        current = _step(steps, current, axis, REPLICATED)
    for axis, after in target:
        if current.on(axis) != after:
            current = _step(steps, current, axis, after)
    for axis, _ in reversed(current.items):
        if target.on(axis) == REPLICATED:
            current = _step(steps, current, axis, REPLICATED)
    if not current.is_same(target):
        axis, placement = target.items[-1]
        raise InterleavedError(axis, placement.dim or placement.kind.value)
    return tuple(_merged(steps))


def _stored_inside(source: Placements, target: Placements) -> list[str]:
    """Axes of storage, innermost first, that the target cuts in another order or not at all."""
    before, after = source.axes_of(PlacementKind.STORED), target.axes_of(PlacementKind.STORED)
    num_common = 0
    while num_common < min(len(before), len(after)) and before[num_common] == after[num_common]:
        num_common += 1
    return list(reversed(before[num_common:]))


def _step(steps: list[Step], current: Placements, axis: str, after: Placement) -> Placements:
    before = current.on(axis)
    if before.kind is PlacementKind.SPLIT:
        assert before.dim is not None, "a split has a dim"
        if current.axes_cutting(before.dim)[-1] != axis:
            raise InterleavedError(axis, before.dim)
    result = current.put(axis, after)
    kind = _KINDS[before.kind, after.kind]
    steps.append(Step(kind=kind, axes=(axis,), before=before, after=after, result=result))
    return result


def _merged(steps: list[Step]) -> list[Step]:
    """Neighbouring steps of sums and of storage as one over all their axes."""
    found: list[Step] = []
    for step in steps:
        last = found[-1] if found else None
        can_merge = (
            last is not None
            and (last.kind, last.before, last.after) == (step.kind, step.before, step.after)
            and PlacementKind.SPLIT not in (step.before.kind, step.after.kind)
        )
        if last is not None and can_merge:
            # Pieces are joined from the inside out and cut from the outside in: the axes keep the cutting order.
            is_joined = step.after == REPLICATED
            axes = (*step.axes, *last.axes) if is_joined else (*last.axes, *step.axes)
            found[-1] = Step(
                kind=step.kind, axes=axes, before=step.before, after=step.after, result=step.result
            )
        else:
            found.append(step)
    return found
