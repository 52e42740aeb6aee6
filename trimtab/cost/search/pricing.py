"""What layouts take, need and cost, and which limit each breaks."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from trimtab.cost.closed_form import (
    Floats,
    PeakMemory,
    StepTimes,
    Values,
    layer_times,
    peak_memory,
    step_times,
)
from trimtab.cost.search.space import Question, cases_of_layouts
from trimtab.cost.search.uneven import uneven_figures

SECONDS_PER_HOUR = 3600.0


class Verdict(StrEnum):
    """What becomes of a layout."""

    FEASIBLE = "feasible"
    MEMORY = "memory"  # does not fit, head-room included
    DEADLINE = "deadline"  # takes longer than there is time
    BUDGET = "budget"  # costs more than there is money


class Objective(StrEnum):
    """What is least in the best layout."""

    TIME = "time"
    DOLLARS = "dollars"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a layout has to keep.

    Args:
        headroom: Share of a device's memory that stays free.
        steps: Of the whole run; None if not known.
        deadline_s: For all steps; None for none.
        budget_usd: For all steps; None for none.
        usd_per_device_hour: None if no price is known.
    """

    headroom: float = 0.08
    steps: int | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    usd_per_device_hour: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced:
    """Layouts with their figures, an element each."""

    times: StepTimes
    held: PeakMemory
    step_s: Floats
    bytes: Floats
    usd: Floats
    is_in_time: np.ndarray
    verdicts: np.ndarray
    shortfall: Floats

    def ordered_by(self, objective: Objective) -> Floats:
        """What is least in the best."""
        return self.usd if objective is Objective.DOLLARS else self.step_s


def price(
    question: Question, limits: Limits, columns: Mapping[str, np.ndarray], *, time: Values, memory: Values
) -> Priced:
    """Every layout, from columns by the fields of Layout: all with a cut between two pools, or none."""
    room: Floats | float
    if np.any(columns.get("first_layers", 0)):
        times, held, room = uneven_figures(
            question, columns, time=time, memory=memory, headroom=limits.headroom
        )
    else:
        cases = cases_of_layouts(question, columns)
        times = step_times(cases, layer_times(cases, time), time)
        held = peak_memory(cases, memory)
        room = question.fabric.memory_bytes * (1 - limits.headroom)
    step_s, needed = np.broadcast_arrays(times.total_s, held.largest_bytes)
    hourly = limits.usd_per_device_hour
    usd = step_s * columns["devices"] * ((1.0 if hourly is None else hourly) / SECONDS_PER_HOUR)
    steps = limits.steps or 1
    late = step_s * steps > (np.inf if limits.deadline_s is None else limits.deadline_s)
    dear = usd * steps > (np.inf if limits.budget_usd is None else limits.budget_usd)
    verdicts = np.select(
        [needed > room, late, dear], [Verdict.MEMORY, Verdict.DEADLINE, Verdict.BUDGET], Verdict.FEASIBLE
    )
    return Priced(
        times=times,
        held=held,
        step_s=step_s,
        bytes=needed,
        usd=usd,
        is_in_time=~(late | dear),
        verdicts=verdicts,
        shortfall=np.maximum(needed - room, 0.0),
    )
