"""Why one layout and not another: which limit it breaks, or which part of the step takes longer."""

from dataclasses import dataclass

import numpy as np

from trimtab.cost.calibration import Belief, Calibrated, Fit, step_seconds
from trimtab.cost.calibration.calibrated import UNCALIBRATED_SPREAD
from trimtab.cost.calibration.fitting import sensitivity
from trimtab.cost.search.finding import Candidate
from trimtab.cost.search.pricing import Verdict
from trimtab.cost.search.space import Layout, Question, priced_cases

QUANTILE = 1.645
"""Standard deviations on both sides of a normal mean that hold nine of ten."""

OWN_SPREAD = 0.02
"""Standard deviation of the logarithm of the ratio of two layouts that constants do not explain: what a calibrated model still
misses of similar runs (BigScience tr11 and vTrain, 1.8 to 4.5 %), the part that they have in common left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A layout beside a better one.

    Args:
        ratio: Its time over that of the better one.
        low, high: Of the ratio: nine of ten lie between; constants that both depend on alike cancel.
        longer: Parts of the step that take longer, by seconds, the largest first.
        verdict: Whether it keeps the limits.
        shortfall_bytes: Memory that it lacks.
    """

    ratio: float
    low: float
    high: float
    longer: tuple[tuple[str, float], ...]
    verdict: Verdict
    shortfall_bytes: float

    @property
    def is_equal(self) -> bool:
        """Whether nobody can say which is faster."""
        return self.low <= 1 <= self.high


def log_spread_between(
    one: tuple[Question, Layout], other: tuple[Question, Layout], *, time: Calibrated
) -> float:
    """Standard deviation of the logarithm of the ratio of two step times, on clusters that need not be the same.

    Zero for a layout beside itself: whatever it takes, it takes twice. On one cluster, constants that both depend on alike
    cancel, and ``OWN_SPREAD`` is left. On two, what constants do not explain of each is taken as independent.
    """
    if one == other:
        return 0.0
    slopes = [
        sensitivity(step_seconds, priced_cases(question, layout), time.belief, time.fitted.logarithms)[0]
        for question, layout in (one, other)
    ]
    apart = slopes[0] - slopes[1]
    left = UNCALIBRATED_SPREAD if time.residuals is None else time.residuals.spread
    unexplained = OWN_SPREAD**2 if one[0].fabric == other[0].fabric else 2 * left**2
    return float(np.sqrt(apart @ time.fitted.covariance @ apart + unexplained))


def compare(
    question: Question, better: Candidate, other: Candidate, *, belief: Belief, fitted: Fit
) -> Comparison:
    """Another layout of the same question beside a better one."""
    slopes = [
        sensitivity(
            step_seconds,
            priced_cases(question, candidate.layout),
            belief,
            fitted.logarithms,
        )[0]
        for candidate in (other, better)
    ]
    apart = slopes[0] - slopes[1]
    spread = np.sqrt(
        apart @ fitted.covariance @ apart + (OWN_SPREAD**2 if other.layout != better.layout else 0)
    )
    ratio = other.step_s / better.step_s
    longer = sorted(
        ((name, other.parts[name] - better.parts[name]) for name in other.parts),
        key=lambda part: -part[1],
    )
    return Comparison(
        ratio=ratio,
        low=float(ratio * np.exp(-QUANTILE * spread)),
        high=float(ratio * np.exp(QUANTILE * spread)),
        longer=tuple((name, seconds) for name, seconds in longer if seconds > 0),
        verdict=other.verdict,
        shortfall_bytes=other.shortfall_bytes,
    )
