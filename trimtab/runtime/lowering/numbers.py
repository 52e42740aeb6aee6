"""The numbers of a step, which every rank knows: how many targets, the gradient's norm, the loss."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from trimtab.plan.physical import Plan
from trimtab.runtime.lowering.comparing import TOLERANCE, Divergence, line_of_axis
from trimtab.runtime.lowering.diagnosis import Diagnosis
from trimtab.runtime.lowering.extents import Layouts
from trimtab.runtime.lowering.updating import Outcome

_Sum = Callable[[Outcome], float | None]


def _num_tokens(outcome: Outcome) -> float | None:
    return float(outcome.num_tokens)


def _norm_square(outcome: Outcome) -> float | None:
    return None if outcome.norm is None else (outcome.norm * outcome.num_tokens) ** 2


def _loss_sum(outcome: Outcome) -> float | None:
    return None if outcome.loss is None else outcome.loss * outcome.num_tokens


_SUMS: Mapping[str, _Sum] = {
    "number of targets": _num_tokens,
    "square of the gradient norm": _norm_square,
    "sum of token losses": _loss_sum,
}
"""What ranks add up, before it is divided: a summand too many shows as a whole number."""


class Numbers:
    """Compares the numbers of steps."""

    def __init__(self, plan: Plan, layouts: Layouts) -> None:
        self._plan = plan
        self._diagnosis = Diagnosis(plan.mesh, layouts)

    def divergence(
        self, found: Mapping[int, Sequence[Outcome]], expected: Sequence[Outcome]
    ) -> Divergence | None:
        """The first number that a rank has otherwise than one device.

        Args:
            found: By rank, then by step.
            expected: By step.
        """
        return next(self._divergences(found, expected), None)

    def _divergences(
        self, found: Mapping[int, Sequence[Outcome]], expected: Sequence[Outcome]
    ) -> Iterator[Divergence]:
        for step, outcome in enumerate(expected):
            for name, number in _SUMS.items():
                whole = number(outcome)
                known = {rank: number(outcomes[step]) for rank, outcomes in found.items()}
                held = {rank: value for rank, value in known.items() if value is not None}
                if whole is None or not held:
                    continue
                errors = {rank: abs(value - whole) / (abs(whole) or 1.0) for rank, value in held.items()}
                if max(errors.values()) > 2 * TOLERANCE:
                    yield self._described(name, step, held, whole, errors)

    def _described(
        self, name: str, step: int, held: Mapping[int, float], whole: float, errors: Mapping[int, float]
    ) -> Divergence:
        arrays = {rank: np.array([value]) for rank, value in held.items()}
        looks = self._diagnosis.of(arrays, {rank: np.array([whole]) for rank in held})
        return Divergence(
            tensor=name,
            step=step,
            microbatch=None,
            error=max(errors.values()),
            ranks=tuple(rank for rank, error in errors.items() if error > 2 * TOLERANCE),
            axis=looks.axis,
            ratio=looks.ratio,
            ratios=looks.ratios,
            cause=looks.cause,
            line=line_of_axis(self._plan, looks.axis) if looks.axis is not None else None,
        )


def comes_before(number: Divergence, tensor: Divergence | None) -> bool:
    """Whether the number of a step is made before a tensor: after all gradients, before all weights."""
    if tensor is None or number.step != tensor.step:
        return tensor is None or number.step < tensor.step
    return tensor.tensor.endswith("after the step")
