"""The constants of a model that fit measurements best, between what is expected and what physics allows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from trimtab.cost.closed_form import Cases, Constant, Floats, Values

Model = Callable[[Cases, Values], Floats]
"""From plans and constants to one positive figure a plan; constants may have a leading axis of alternatives."""

MEASUREMENT_SPREAD = 0.05
"""Standard deviation of the logarithm of a measurement around a good model."""

ROWS_THAT_COUNT = 60
"""Of one stack: more rows of it weigh no more than so many, for their errors are those of the same few kernels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Belief:
    """What is known of constants: the logarithm of each is normal around an expectation.

    Args:
        constants: Which, in order.
        means: Of the logarithms.
        spreads: Standard deviations of the logarithms.
    """

    constants: tuple[Constant, ...]
    means: Floats
    spreads: Floats

    @classmethod
    def before(cls, constants: Sequence[Constant]) -> "Belief":
        """As the constants say themselves."""
        return cls(
            constants=tuple(constants),
            means=np.log([constant.expected for constant in constants]),
            spreads=np.asarray([constant.spread for constant in constants]),
        )

    def values(self, logarithms: Floats) -> Values:
        """By name; with a leading axis, as columns that broadcast against plans."""
        spread = logarithms[..., None] if logarithms.ndim > 1 else logarithms
        return {
            constant.name: np.exp(spread[..., i, :] if logarithms.ndim > 1 else spread[i])
            for i, constant in enumerate(self.constants)
        }

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Of the logarithms."""
        return (
            np.log([constant.low for constant in self.constants]),
            np.log([constant.high for constant in self.constants]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Constants after measurements.

    Args:
        logarithms: Of the constants, the most likely.
        covariance: Of the logarithms, by the curvature there.
    """

    logarithms: Floats
    covariance: Floats


def fit(model: Model, cases: Cases, measured: Floats, belief: Belief) -> Fit:
    """The most likely constants, a posteriori.

    Minimised is the sum over measurements of a robust loss of log(model / measured), each over MEASUREMENT_SPREAD, and
    over constants of the squared distance from the belief. Robust: a row that the model cannot explain pulls with its
    distance, not with its square.

    Args:
        model: Whose constants are asked for.
        cases: What was run.
        measured: One figure a case.
        belief: Of the constants, before.
    """
    target = np.log(measured)
    weight = 1 / (MEASUREMENT_SPREAD * max(1.0, len(target) / ROWS_THAT_COUNT) ** 0.5)

    def residuals(logarithms: Floats) -> Floats:
        missed = (np.log(model(cases, belief.values(logarithms))) - target) * weight
        return np.concatenate([missed, (logarithms - belief.means) / belief.spreads])

    def slopes(logarithms: Floats) -> Floats:
        return np.vstack(
            [sensitivity(model, cases, belief, logarithms) * weight, np.diag(1 / belief.spreads)]
        )

    low, high = belief.bounds
    found = least_squares(
        residuals,
        np.clip(belief.means, low + _INSIDE, high - _INSIDE),
        slopes,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=2.0,
        max_nfev=80,
    )
    curvature = slopes(found.x)
    return Fit(
        logarithms=found.x, covariance=np.asarray(np.linalg.inv(curvature.T @ curvature), dtype=np.float64)
    )


def sensitivity(model: Model, cases: Cases, belief: Belief, logarithms: Floats) -> Floats:
    """How the logarithm of the model moves with the logarithm of each constant: (cases, constants)."""
    nearby = np.vstack([logarithms, logarithms + _NEARBY * np.eye(len(logarithms))])
    found = np.log(model(cases, belief.values(nearby)))
    slopes: Floats = ((found[1:] - found[0]) / _NEARBY).T
    return slopes


def learn(belief: Belief, fits: Sequence[Floats]) -> Belief:
    """What constants of several stacks say about those of the next.

    Means shrink towards the belief as if it were ``_OLD_STACKS`` stacks; spreads are those of the stacks around them, and
    no less than a tenth of what was believed.
    """
    if not fits:
        return belief
    stacks = np.asarray(fits)
    total = _OLD_STACKS + len(stacks)
    means = (_OLD_STACKS * belief.means + stacks.sum(axis=0)) / total
    squares = _OLD_STACKS * belief.spreads**2 / 2 + ((stacks - means) ** 2).sum(axis=0)
    return Belief(
        constants=belief.constants, means=means, spreads=np.sqrt(squares / total) + 0.1 * belief.spreads
    )


_OLD_STACKS = 3.0
_NEARBY, _INSIDE = 1e-5, 1e-6
