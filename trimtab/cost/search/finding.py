"""The best layouts under constraints, the front between time, dollars, memory and devices, and what became of the rest."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from trimtab.cost.closed_form import (
    Cases,
    Floats,
    PeakMemory,
    StepTimes,
    Values,
    layer_times,
    peak_memory,
    step_times,
)
from trimtab.cost.search.space import Layout, Question, cases_of_layouts, layout_at, layouts, priced_cases

SECONDS_PER_HOUR = 3600.0
_FEW = 64


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
class Candidate:
    """One layout, priced.

    Args:
        step_s: By closed forms.
        parts: Where the step goes, in seconds, by name.
        closed_form_bytes: Memory of the device that needs most, by closed forms.
        memory_bytes: The same as it was weighed; by closed forms until then.
        memory_parts: By class, on that device.
        usd_per_step: None without a price.
        verdict: Whether it keeps the limits, and which it breaks first.
        shortfall_bytes: Memory that is lacking; 0 where it fits.
        is_weighed: Whether it was compiled and its memory counted.
        refusal: Why it cannot be compiled; empty if it can, or if nobody has tried.
    """

    layout: Layout
    step_s: float
    parts: Mapping[str, float]
    closed_form_bytes: float
    memory_bytes: float
    memory_parts: Mapping[str, float]
    usd_per_step: float | None
    verdict: Verdict
    shortfall_bytes: float
    is_weighed: bool = False
    refusal: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What a search found.

    Args:
        evaluated: Layouts that were priced, time and memory of each.
        verdicts: How many ended how.
        best: The feasible ones with the least time (or dollars), in order.
        front: Feasible ones that no other beats in time, dollars, memory and devices at once; by time.
        curve: The best one for each number of devices.
        ladders: For each number of devices layouts from the fastest on, each needing less memory than all before it.
        smallest: Those that need least memory, in order, whether they fit or not.
        nearest: Of those that do not fit, the ones that lack least; empty if something fits.
    """

    evaluated: int
    verdicts: Mapping[Verdict, int]
    best: tuple[Candidate, ...]
    front: tuple[Candidate, ...]
    curve: tuple[Candidate, ...]
    ladders: Mapping[int, tuple[Layout, ...]]
    smallest: tuple[Candidate, ...]
    nearest: tuple[Candidate, ...]


def find(
    question: Question,
    limits: Limits,
    *,
    time: Values,
    memory: Values,
    objective: Objective = Objective.TIME,
    keep: int = 64,
    slack: float = 1.0,
) -> Findings:
    """Price every layout.

    Args:
        question: What is trained, on what.
        limits: What has to be kept.
        time: Constants of the closed forms of time.
        memory: Those of memory.
        objective: By which the best are ordered.
        keep: How many of the best, and of the smallest.
        slack: Part of the closed forms' bytes that has to fit: below 1 ``best`` and ``ladders`` hold layouts that only fit
            if they turn out to need less. Verdicts, front and curve do not look at it.
    """
    counts: Counter[Verdict] = Counter()
    evaluated = 0
    best, small, front = _Kept(keep), _Kept(keep), _Front()
    for columns in layouts(question):
        priced = _price(question, limits, cases_of_layouts(question, columns), time, memory)
        evaluated += len(priced.step_s)
        for verdict in Verdict:
            counts[verdict] += int(np.count_nonzero(priced.verdicts == verdict))
        may_fit = priced.is_in_time & (priced.bytes * slack <= _room(question, limits))
        best.add(columns, np.where(may_fit, priced.ordered_by(objective), np.inf))
        front.add(columns, priced, may_fit)
        small.add(columns, np.where(priced.is_in_time, priced.bytes, np.inf))

    def priced_one(layout: Layout) -> Candidate:
        return price_of_layout(question, limits, layout, time=time, memory=memory)

    def candidates(chosen: Sequence[Layout]) -> tuple[Candidate, ...]:
        return tuple(map(priced_one, chosen))

    def fastest(ladder: Sequence[Layout]) -> Candidate | None:
        return next((one for one in map(priced_one, ladder) if one.verdict is Verdict.FEASIBLE), None)

    ladders = front.ladders()
    # Who finds something that fits asks for few of the smallest, and pricing one by one takes time.
    smallest = candidates(small.layouts()[: _FEW if counts[Verdict.FEASIBLE] else keep])
    return Findings(
        evaluated=evaluated,
        verdicts={verdict: counts[verdict] for verdict in Verdict},
        best=candidates(best.layouts()),
        front=tuple(one for one in candidates(front.layouts()) if one.verdict is Verdict.FEASIBLE),
        curve=tuple(one for one in map(fastest, ladders.values()) if one is not None),
        ladders=ladders,
        smallest=smallest,
        nearest=() if counts[Verdict.FEASIBLE] else tuple(one for one in smallest if one.shortfall_bytes > 0),
    )


def price_of_layout(
    question: Question, limits: Limits, layout: Layout, *, time: Values, memory: Values
) -> Candidate:
    """One layout, with where its time and its memory go."""
    priced = _price(question, limits, priced_cases(question, layout), time, memory)
    parts = {name: _first(getattr(priced.times, name)) for name in StepTimes.__dataclass_fields__}
    held = priced.held
    activations = max(_first(held.first_bytes), _first(held.last_bytes))
    used = sum(map(_first, (held.state_bytes, held.gathered_bytes, held.posted_bytes))) + activations
    return Candidate(
        layout=layout,
        step_s=_first(priced.step_s),
        parts=parts,
        closed_form_bytes=_first(priced.bytes),
        memory_bytes=_first(priced.bytes),
        memory_parts={
            "state_bytes": _first(held.state_bytes),
            "gathered_bytes": _first(held.gathered_bytes),
            "posted_bytes": _first(held.posted_bytes),
            "activation_bytes": activations,
            "fragmentation_bytes": used * (_first(held.fragmentation) - 1),
            "overhead_bytes": _first(held.overhead_bytes),
        },
        usd_per_step=None if limits.usd_per_device_hour is None else _first(priced.usd),
        verdict=Verdict(priced.verdicts[0]),
        shortfall_bytes=_first(priced.shortfall),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Priced:
    times: StepTimes
    held: PeakMemory
    step_s: Floats
    bytes: Floats
    usd: Floats
    is_in_time: np.ndarray
    verdicts: np.ndarray
    shortfall: Floats

    def ordered_by(self, objective: Objective) -> Floats:
        return self.usd if objective is Objective.DOLLARS else self.step_s


def _price(question: Question, limits: Limits, cases: Cases, time: Values, memory: Values) -> _Priced:
    times = step_times(cases, layer_times(cases, time), time)
    held = peak_memory(cases, memory)
    step_s, needed = np.broadcast_arrays(times.total_s, held.largest_bytes)
    price = limits.usd_per_device_hour
    usd = step_s * cases.devices * ((1.0 if price is None else price) / SECONDS_PER_HOUR)
    room = _room(question, limits)
    steps = limits.steps or 1
    late = step_s * steps > (np.inf if limits.deadline_s is None else limits.deadline_s)
    dear = usd * steps > (np.inf if limits.budget_usd is None else limits.budget_usd)
    verdicts = np.select(
        [needed > room, late, dear], [Verdict.MEMORY, Verdict.DEADLINE, Verdict.BUDGET], Verdict.FEASIBLE
    )
    return _Priced(
        times=times,
        held=held,
        step_s=step_s,
        bytes=needed,
        usd=usd,
        is_in_time=~(late | dear),
        verdicts=verdicts,
        shortfall=np.maximum(needed - room, 0.0),
    )


def _room(question: Question, limits: Limits) -> float:
    return question.fabric.memory_bytes * (1 - limits.headroom)


def _first(figures: Floats) -> float:
    return float(np.ravel(figures)[0])


@dataclass(slots=True)
class _Kept:
    """The layouts with the least values so far."""

    size: int
    values: Floats = field(default_factory=lambda: np.zeros(0))
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, columns: Mapping[str, np.ndarray], values: Floats) -> None:
        chosen = np.flatnonzero(np.isfinite(values))
        if len(chosen) > self.size:
            chosen = chosen[np.argpartition(values[chosen], self.size - 1)[: self.size]]
        if not len(chosen):
            return
        joined = np.concatenate([self.values, values[chosen]])
        order = np.argsort(joined, kind="stable")[: self.size]
        self.columns = {
            name: np.concatenate([self.columns.get(name, column[:0]), column[chosen]])[order]
            for name, column in columns.items()
        }
        self.values = joined[order]

    def layouts(self) -> list[Layout]:
        return [layout_at(self.columns, index) for index in range(len(self.values))]


@dataclass(slots=True)
class _Front:
    """The layouts that no other beats everywhere; for one number of devices dollars are time, so time and memory decide."""

    by_devices: dict[int, tuple[Floats, Floats, dict[str, np.ndarray]]] = field(default_factory=dict)

    def add(self, columns: Mapping[str, np.ndarray], priced: _Priced, fits: np.ndarray) -> None:
        for devices in np.unique(columns["devices"][fits]):
            chosen = np.flatnonzero(fits & (columns["devices"] == devices))
            old = self.by_devices.get(int(devices))
            seconds, needed = priced.step_s[chosen], priced.bytes[chosen]
            own = {name: column[chosen] for name, column in columns.items()}
            if old is not None:
                seconds, needed = np.concatenate([old[0], seconds]), np.concatenate([old[1], needed])
                own = {name: np.concatenate([old[2][name], column]) for name, column in own.items()}
            order = np.lexsort((needed, seconds))
            least = np.minimum.accumulate(needed[order])
            keeps = np.concatenate([[True], least[1:] < least[:-1]])
            kept = order[keeps]
            self.by_devices[int(devices)] = (
                seconds[kept],
                needed[kept],
                {name: column[kept] for name, column in own.items()},
            )

    def ladders(self) -> dict[int, tuple[Layout, ...]]:
        """For each number of devices, from the fastest on."""
        return {
            devices: tuple(layout_at(columns, index) for index in range(len(seconds)))
            for devices, (seconds, _, columns) in sorted(self.by_devices.items())
        }

    def layouts(self) -> list[Layout]:
        points = [
            (float(seconds[i]), devices * float(seconds[i]), float(needed[i]), devices, layout_at(columns, i))
            for devices, (seconds, needed, columns) in sorted(self.by_devices.items())
            for i in range(len(seconds))
        ]
        kept = [
            point
            for point in points
            if not any(_beats(other[:4], point[:4]) for other in points if other is not point)
        ]
        return [point[4] for point in sorted(kept, key=lambda point: point[0])]


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
