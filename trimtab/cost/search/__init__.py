"""Which layout is best? All of them, priced by closed forms; the best judged by their real schedules; and why not others."""

from trimtab.cost.search.fabrics import Fabric, Pool, SpaceError, fabric_of, fabric_of_probe, pools_of
from trimtab.cost.search.finding import (
    Candidate,
    Findings,
    find,
    price_of_layout,
    price_of_layouts,
)
from trimtab.cost.search.formulas import formulas_of, settings_of
from trimtab.cost.search.judging import judged_step_s
from trimtab.cost.search.largest import Growing, Largest, largest
from trimtab.cost.search.mixing import Mixture, strong_and_weak
from trimtab.cost.search.plans import plan_of
from trimtab.cost.search.pricing import Limits, Objective, Verdict
from trimtab.cost.search.reasons import QUANTILE, Comparison, compare, log_spread_between
from trimtab.cost.search.refining import Refined, refined
from trimtab.cost.search.routes import SumTime, better_sum, sum_times
from trimtab.cost.search.space import Layout, Question, priced_cases
from trimtab.cost.search.weighing import SLACK, Scales
from trimtab.cost.search.words import WAYS

__all__ = [
    "QUANTILE",
    "SLACK",
    "WAYS",
    "Candidate",
    "Comparison",
    "Fabric",
    "Findings",
    "Growing",
    "Largest",
    "Layout",
    "Limits",
    "Mixture",
    "Objective",
    "Pool",
    "Question",
    "Refined",
    "Scales",
    "SpaceError",
    "SumTime",
    "Verdict",
    "better_sum",
    "compare",
    "fabric_of",
    "fabric_of_probe",
    "find",
    "formulas_of",
    "judged_step_s",
    "largest",
    "log_spread_between",
    "plan_of",
    "pools_of",
    "price_of_layout",
    "price_of_layouts",
    "priced_cases",
    "refined",
    "settings_of",
    "strong_and_weak",
    "sum_times",
]
