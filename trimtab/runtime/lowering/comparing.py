"""The first tensor of a parallel run that is not that of one device.

How close is equal: 1e-5 of a tensor's own size, in fp32. Sums of n numbers in another order differ by about
sqrt(n) half units in the last place, 6e-8 each; through a dozen layers, forwards and backwards, measured differences
stay below 2e-6. A summand too many or too few among n ranks is a difference of 1/n or more. Tensors whose exact value is
zero hold nothing but rounding (a key's bias moves all scores alike, so its gradient is zero; up to 2e-7 of the root
mean square of all gradients was measured): they are measured by a tenth of the root mean square of all gradients, weights by no less than the learning rate.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimtab.plan.physical import Plan
from trimtab.plan.placements import PlacementKind
from trimtab.plan.program import Operator, OperatorKind
from trimtab.runtime.lowering.diagnosis import (
    Diagnosis,
    Looks,
    Number,
    of_movement,
    root_mean_square,
    summed,
)
from trimtab.runtime.lowering.extents import Extent, Layouts
from trimtab.runtime.lowering.observing import Array, Order, Seen
from trimtab.runtime.lowering.quantities import MOVES
from trimtab.runtime.lowering.replicas import Replica, sees_slots_of_others
from trimtab.terms import Span

TOLERANCE = 1e-5
"""Of a tensor's size; see the module."""

ZERO = 0.1
"""Part of the root mean square of all gradients below which a gradient counts as zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """A tensor that is not that of one device.

    Args:
        tensor: Its name.
        step, microbatch: Counted from 0; no microbatch for what happens once a step.
        error: Of its size.
        ranks: That have another value.
        axis: Of the mesh that explains it; None if none does.
        ratio: Between what was found and what one device has; None if it is not one number.
        ratios: The least and the largest, where each rank has one of its own.
        is_of_movement: Whether the ratio is that of the ways that weights move in the step.
        cause: The usual one, in a sentence; empty if nothing is known.
        line: The statement behind it; None if a default is.
    """

    tensor: str
    step: int
    microbatch: int | None
    error: float
    ranks: tuple[int, ...]
    axis: str | None = None
    ratio: float | None = None
    ratios: tuple[float, float] | None = None
    is_of_movement: bool = False
    cause: str = ""
    line: Span | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What a comparison found.

    Args:
        num_tensors: Logical tensors compared.
        largest_error: Of those that are equal.
        first: The first that is not, in order of execution; None if all are.
        num_diverged: Tensors that are not.
    """

    num_tensors: int
    largest_error: float
    first: Divergence | None
    num_diverged: int


class Comparison:
    """Compares one replica's ranks with one device.

    Args:
        plan: That the ranks ran.
        layouts: Of its mesh.
        replicas: All that train apart.
        replica: The one to be compared.
        whole: The tensors of one device, by step, microbatch and name.
        rate: Of a step, counted from 0: what weights move by.
    """

    def __init__(
        self,
        plan: Plan,
        layouts: Layouts,
        replicas: Sequence[Replica],
        replica: Replica,
        whole: Mapping[tuple[int, int, str], Array],
        rate: Callable[[int], float],
    ) -> None:
        self._plan, self._layouts = plan, layouts
        self._replicas, self._replica, self._whole = replicas, replica, whole
        self._rate = rate
        self._gradient_size = _size_of_gradients(whole)
        self._diagnosis = Diagnosis(plan.mesh, layouts)
        self._averaged = {axis for by_axis in plan.bound.averages.values() for axis in by_axis}

    def compare(self, seen: Mapping[int, Sequence[Seen]]) -> Compared:
        """What the ranks saw, by rank, against the one device."""
        by_order: dict[Order, dict[int, Seen]] = {}
        for rank in self._replica.ranks:
            for one in seen[rank]:
                by_order.setdefault(one.order, {})[rank] = one
        num_tensors = num_diverged = 0
        largest, first = 0.0, None
        for order in sorted(by_order):
            error = self._largest_error(by_order[order])
            if error is None:
                continue
            num_tensors += 1
            if error <= TOLERANCE:
                largest = max(largest, error)
                continue
            num_diverged += 1
            first = first or self._divergence(by_order[order], error)
        return Compared(
            num_tensors=num_tensors, largest_error=largest, first=first, num_diverged=num_diverged
        )

    def _largest_error(self, held: Mapping[int, Seen]) -> float | None:
        """Of any rank; None for what one device does not know."""
        expected = self._expected(held)
        if expected is None:
            return None
        found, size = self._found(held), self._size(next(iter(held.values())))
        return max(_error(found[rank], expected[rank], size) for rank in held)

    def _expected(self, held: Mapping[int, Seen]) -> dict[int, Array] | None:
        one = next(iter(held.values()))
        whole = self._whole.get((one.step, one.microbatch, one.tensor))
        if whole is None or sees_slots_of_others(one.value, self._replicas):
            return None
        return {rank: _take(whole, self._extent(seen, rank)) for rank, seen in held.items()}

    def _found(self, held: Mapping[int, Seen]) -> dict[int, Array]:
        """Each rank's piece, summands added over the axes on which they are ones."""
        placements = next(iter(held.values())).value.placements
        axes = [axis for axis in placements.axes_of(PlacementKind.PARTIAL) if axis not in self._averaged]
        return summed({rank: seen.array for rank, seen in held.items()}, axes, self._layouts)

    def _extent(self, seen: Seen, rank: int) -> Extent:
        value = seen.value
        extent = self._layouts.extent(value.dims, value.shape, value.placements, rank)
        return self._replica.own(extent, value)

    def _size(self, one: Seen) -> float:
        """What differences are measured by: the whole tensor's root mean square, or for zeros what is said above."""
        size = root_mean_square(self._whole[one.step, one.microbatch, one.tensor])
        if one.is_weights:
            return max(size, self._rate(0))
        return max(size, ZERO * self._gradient_size) if one.parameter else size

    # What it looks like.

    def _divergence(self, held: Mapping[int, Seen], error: float) -> Divergence:
        expected = self._expected(held)
        assert expected is not None, "what diverges is known"
        found, one = self._found(held), next(iter(held.values()))
        size, chain = self._size(one), self._chain(one)
        moved = self._moved_wrongly(held, found, expected) if one.is_weights else None
        looks = moved or self._looks(held, found, expected, chain)
        return Divergence(
            tensor=one.tensor,
            step=one.step,
            microbatch=None if one.block == UPDATE else one.microbatch,
            error=error,
            ranks=tuple(rank for rank in held if _error(found[rank], expected[rank], size) > TOLERANCE),
            axis=looks.axis,
            ratio=looks.ratio,
            ratios=looks.ratios,
            is_of_movement=moved is not None,
            cause=looks.cause,
            line=looks.line or self._line(looks.axis, one, chain),
        )

    def _looks(
        self,
        held: Mapping[int, Seen],
        found: Mapping[int, Array],
        expected: Mapping[int, Array],
        chain: Sequence[Operator],
    ) -> Looks:
        one = next(iter(held.values()))
        cut = [axis for axis, placement in one.value.placements if placement.dim is not None]
        looks = self._diagnosis.of(
            found,
            expected,
            first=[*_axes_of(chain), *cut],
            numbers=_numbers_of(self._plan),
            before=None if one.is_weights else self._before(held),
        )
        return looks if looks.axis or looks.cause else self._padded(one, looks)

    def _before(self, held: Mapping[int, Seen]) -> dict[int, Array] | None:
        """What one device had in the step before; of weights in the first step, the initial ones."""
        return self._expected({rank: replace(seen, step=seen.step - 1) for rank, seen in held.items()})

    def _padded(self, one: Seen, looks: Looks) -> Looks:
        """What else is known of a difference without a cause: that a dim of what it is made from is padded."""
        values = self._plan.update.values
        for block in self._plan.blocks:
            if block.name == one.block:
                values = block.values
        for value in (one.value, *(values[name] for name in one.operator.inputs)):
            for dim, size in zip(value.dims, value.shape, strict=True):
                axes = value.placements.axes_cutting(dim)
                pieces = math.prod(self._plan.axis_sizes[axis] for axis in axes)
                if size % pieces:
                    cause = (
                        f"{dim} has {size} elements and is padded to {-(-size // pieces) * pieces} over {', '.join(axes)}: "
                        "padding that counts is a usual cause"
                    )
                    return replace(looks, axis=axes[0], cause=cause)
        return looks

    def _moved_wrongly(
        self, held: Mapping[int, Seen], found: Mapping[int, Array], expected: Mapping[int, Array]
    ) -> Looks | None:
        """Whether weights have moved the right way and not as far as they should."""
        before = self._before(held)
        ratio = None if before is None else of_movement(found, expected, before)
        if ratio is None:
            return None
        step = next(iter(held.values())).step
        sizes = self._plan.axis_sizes
        for ticks in range(2, self._plan.mesh.num_devices + 1):
            if step and abs(self._rate(step * ticks) - ratio * self._rate(step)) < _NEAR_RATE * self._rate(
                step
            ):
                axis = next((axis for axis, size in sizes.items() if size == ticks), None)
                whose = "" if axis is None else f", once for each rank of {axis}"
                cause = f"it moves by the learning rate of step {step * ticks + 1}: the schedule ticks {ticks} times a step{whose}"
                return Looks(axis=axis, ratio=ratio, cause=cause)
        return Looks(ratio=ratio, cause="its gradient is right: the learning rate or the optimizer is not")

    def _chain(self, one: Seen) -> list[Operator]:
        """What moved, summed or biased a tensor since it was computed, the last first."""
        makers = _makers(self._plan, one.block)
        found, name = [], one.value.name
        while name in makers and makers[name].kind in _CHAIN:
            operator = makers[name]
            found.append(operator)
            name = operator.inputs[operator.outputs.index(name) if operator.kind in MOVES else 0]
        return found

    def _line(self, axis: str | None, one: Seen, chain: Sequence[Operator]) -> Span | None:
        """The statement that put an axis to the use that this tensor makes of it."""
        for operator in chain:
            is_over = operator.transfer is not None and axis in operator.transfer.axes
            if operator.because.line is not None and (axis is None or is_over):
                return operator.because.line
        if axis is None:
            cut = [
                axis
                for axis, placement in one.value.placements
                if placement.kind is not PlacementKind.PARTIAL
            ]
            lines = (self._line(axis, one, ()) for axis in reversed(cut))
            return one.operator.because.line or next((line for line in lines if line is not None), None)
        parameter = self._plan.parameters.get(one.parameter)
        for decision, line in parameter.lines.items() if parameter is not None else ():
            if decision.split()[-1] == axis and line is not None:
                return line
        return line_of_axis(self._plan, axis)


UPDATE = "update"
"""The program that runs once a step, beside those of blocks."""

_CHAIN = MOVES | {OperatorKind.SUM, OperatorKind.ADD_BIAS, OperatorKind.SET_APART}


_NEAR_RATE = 1e-3
"""Part of a learning rate by which another may differ and be taken for it."""


def _numbers_of(plan: Plan) -> list[Number]:
    """What a loss may be scaled by that is none of its business."""
    pipeline, work = plan.pipeline, plan.work
    return [
        Number(count=work.microbatches_per_part, what="microbatches of a share", line=pipeline.line),
        Number(count=pipeline.num_stages, what="stages", line=pipeline.line),
    ]


def line_of_axis(plan: Plan, axis: str) -> Span | None:
    """The statement that cuts something over an axis; None if only defaults do."""
    if axis == plan.pipeline.axis:
        return plan.pipeline.line
    for decisions in (plan.bound.batch_axes, plan.bound.attention):
        if axis in decisions and decisions[axis].line is not None:
            return decisions[axis].line
    lines = (
        operator.because.line
        for operator in _operators(plan)
        if operator.transfer is not None and axis in operator.transfer.axes
    )
    return next((line for line in lines if line is not None), None)


def _axes_of(chain: Sequence[Operator]) -> list[str]:
    """Axes that sums were made over, an axis that two were made over first."""
    axes = [axis for operator in chain if operator.transfer is not None for axis in operator.transfer.axes]
    return sorted(dict.fromkeys(axes), key=lambda axis: -axes.count(axis))


def _makers(plan: Plan, program: str) -> dict[str, Operator]:
    """Who makes each value of a program."""
    operators: Sequence[Operator] = plan.update.operators
    for block in plan.blocks:
        if block.name == program:
            operators = (*block.gathers, *block.forward, *block.backward)
    return {name: operator for operator in operators for name in operator.outputs}


def _operators(plan: Plan) -> Iterator[Operator]:
    for block in plan.blocks:
        yield from (*block.forward, *block.backward)
    yield from plan.update.operators


def _size_of_gradients(whole: Mapping[tuple[int, int, str], Array]) -> float:
    """Root mean square of all gradients of parameters in the first step."""
    arrays = [
        array
        for (step, _, tensor), array in whole.items()
        if step == 0 and tensor.startswith("gradient of ") and " in " in tensor
    ]
    return root_mean_square(np.concatenate([array.reshape(-1) for array in arrays])) if arrays else 0.0


def _take(whole: Array, extent: Extent) -> Array:
    """A piece of a whole array, padding zero."""
    for dim, run in enumerate(extent.dims):
        whole = _narrowed(whole, dim, run.start, run.real, run.length)
    if extent.stored is not None:
        run = extent.stored
        whole = _narrowed(whole.reshape(-1), 0, run.start, run.real, run.length)
    return whole


def _narrowed(array: Array, dim: int, start: int, real: int, length: int) -> Array:
    index = [slice(None)] * array.ndim
    index[dim] = slice(start, start + real)
    piece = array[tuple(index)]
    if length == real:
        return piece
    return np.pad(piece, [(0, length - real if at == dim else 0) for at in range(array.ndim)])


def _error(found: Array, expected: Array, size: float) -> float:
    """Root mean square of the difference, as a part of ``size``."""
    if found.shape != expected.shape:
        return float("inf")
    difference = root_mean_square(found - expected)
    if difference == 0.0:
        return 0.0
    return difference / size if size else float("inf")
