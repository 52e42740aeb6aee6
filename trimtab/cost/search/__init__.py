"""Which layout is best? All of them, priced by closed forms; the best judged by their real schedules; and why not others."""

from trimtab.cost.search.finding import (
    Candidate,
    Findings,
    Limits,
    Objective,
    Verdict,
    find,
    price_of_layout,
)
from trimtab.cost.search.formulas import formulas_of, settings_of
from trimtab.cost.search.judging import judged_step_s
from trimtab.cost.search.largest import Growing, Largest, largest
from trimtab.cost.search.plans import plan_of
from trimtab.cost.search.reasons import QUANTILE, Comparison, compare, log_spread_between
from trimtab.cost.search.space import (
    Fabric,
    Layout,
    Question,
    SpaceError,
    fabric_of,
    fabric_of_probe,
    priced_cases,
)

__all__ = [
    "QUANTILE",
    "Candidate",
    "Comparison",
    "Fabric",
    "Findings",
    "Growing",
    "Largest",
    "Layout",
    "Limits",
    "Objective",
    "Question",
    "SpaceError",
    "Verdict",
    "compare",
    "fabric_of",
    "fabric_of_probe",
    "find",
    "formulas_of",
    "judged_step_s",
    "largest",
    "log_spread_between",
    "plan_of",
    "price_of_layout",
    "priced_cases",
    "settings_of",
]
