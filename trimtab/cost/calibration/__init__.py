"""How far off is the model, and what makes it less so? Measured runs, constants fitted to them, intervals, scores."""

from trimtab.cost.calibration.calibrated import (
    Calibrated,
    Prediction,
    calibrate,
    largest_bytes,
    reported_bytes,
    step_seconds,
)
from trimtab.cost.calibration.fitting import Belief, Fit, fit, learn
from trimtab.cost.calibration.probed import calibrated_on
from trimtab.cost.calibration.rows import REQUIRED_COLUMNS, MeasuredRun, cases_of, measured_runs
from trimtab.cost.calibration.scoring import (
    RankedGroup,
    Scored,
    StackFits,
    by_source,
    held_out,
    published_fits,
    ranked_groups,
    score_after,
    stack_fits,
    written_fits,
)

__all__ = [
    "REQUIRED_COLUMNS",
    "Belief",
    "Calibrated",
    "Fit",
    "MeasuredRun",
    "Prediction",
    "RankedGroup",
    "Scored",
    "StackFits",
    "by_source",
    "calibrate",
    "calibrated_on",
    "cases_of",
    "fit",
    "held_out",
    "largest_bytes",
    "learn",
    "measured_runs",
    "published_fits",
    "ranked_groups",
    "reported_bytes",
    "score_after",
    "stack_fits",
    "step_seconds",
    "written_fits",
]
