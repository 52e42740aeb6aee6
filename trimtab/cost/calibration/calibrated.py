"""A model after some measurements of one stack: predictions with an interval."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.cost.calibration.fitting import Belief, Fit, Model, fit, sensitivity
from trimtab.cost.calibration.residuals import Residuals, features_of, learn_residuals
from trimtab.cost.calibration.rows import MeasuredRun, cases_of
from trimtab.cost.closed_form import Cases, Floats, Values, layer_times, peak_memory, step_times

QUANTILE = 1.645
"""Standard deviations on both sides of a normal mean that hold nine of ten."""

UNCALIBRATED_SPREAD = 0.10
"""Standard deviation of the logarithm that is left of a stack nobody measured, beside that of its constants."""


def step_seconds(cases: Cases, values: Values) -> Floats:
    """Of each case."""
    return step_times(cases, layer_times(cases, values), values).total_s


def reported_bytes(cases: Cases, values: Values) -> Floats:
    """Peak memory of the first rank, whose logs people read."""
    return peak_memory(cases, values).first_rank_bytes


def largest_bytes(cases: Cases, values: Values) -> Floats:
    """Peak memory of the rank that needs most."""
    return peak_memory(cases, values).largest_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One figure a run.

    Args:
        expected: The median.
        low, high: Nine of ten lie between.
    """

    expected: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """A model of one stack.

    Args:
        residuals: What it misses by; None without measurements.
    """

    model: Model
    belief: Belief
    fitted: Fit
    residuals: Residuals | None

    @property
    def values(self) -> Values:
        """The constants."""
        return self.belief.values(self.fitted.logarithms)

    def factor_of(self, case: Cases) -> float:
        """Of one case that nobody measured: nine of ten lie between its expectation over this, and times this."""
        slopes = sensitivity(self.model, case, self.belief, self.fitted.logarithms)[0]
        left = UNCALIBRATED_SPREAD if self.residuals is None else self.residuals.spread
        return float(np.exp(QUANTILE * np.sqrt(slopes @ self.fitted.covariance @ slopes + left**2)))

    def predict(self, runs: Sequence[MeasuredRun], model: Model | None = None) -> Prediction:
        """Of runs, from their plans alone.

        Args:
            runs: Whatever was measured of them is not looked at.
            model: Another with the same constants, missed alike.
        """
        model = model or self.model
        cases = cases_of(runs)
        logarithm = np.log(model(cases, self.values))
        slopes = sensitivity(model, cases, self.belief, self.fitted.logarithms)
        variance = np.einsum("ij,jk,ik->i", slopes, self.fitted.covariance, slopes)
        if self.residuals is None:
            spread = np.sqrt(variance + UNCALIBRATED_SPREAD**2)
        else:
            missed, left = self.residuals.at(features_of(cases, [run.labels for run in runs]))
            logarithm, spread = logarithm + missed, np.sqrt(variance + left**2)
        return Prediction(
            expected=np.exp(logarithm),
            low=np.exp(logarithm - QUANTILE * spread),
            high=np.exp(logarithm + QUANTILE * spread),
        )


def calibrate(model: Model, runs: Sequence[MeasuredRun], measured: Floats, belief: Belief) -> Calibrated:
    """From runs of one stack and what was measured of each; from none it is what is believed."""
    if not runs:
        covariance = np.diag(belief.spreads**2)
        low, high = belief.bounds
        return Calibrated(
            model=model,
            belief=belief,
            fitted=Fit(logarithms=np.clip(belief.means, low, high), covariance=covariance),
            residuals=None,
        )
    cases = cases_of(runs)
    fitted = fit(model, cases, measured, belief)
    missed = np.log(measured) - np.log(model(cases, belief.values(fitted.logarithms)))
    features = features_of(cases, [run.labels for run in runs])
    return Calibrated(model=model, belief=belief, fitted=fitted, residuals=learn_residuals(features, missed))
