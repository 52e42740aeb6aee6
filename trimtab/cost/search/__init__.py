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
from trimtab.cost.search.reasons import Comparison, compare
from trimtab.cost.search.space import (
    Fabric,
    Layout,
    Question,
    SpaceError,
    fabric_of,
    fabric_of_probe,
    priced_cases,
)
from trimtab.cost.search.weighing import SLACK, Scales

__all__ = [
    "SLACK",
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
    "Scales",
    "SpaceError",
    "Verdict",
    "compare",
    "fabric_of",
    "fabric_of_probe",
    "find",
    "formulas_of",
    "judged_step_s",
    "largest",
    "plan_of",
    "price_of_layout",
    "priced_cases",
    "settings_of",
]
