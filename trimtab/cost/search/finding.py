"""The best layouts under constraints, the front between time, dollars, memory and devices, and what became of the rest."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from trimtab.cost.closed_form import Floats, StepTimes, Values, peak_memory
from trimtab.cost.search.pricing import Limits, Objective, Priced, Verdict, price
from trimtab.cost.search.space import Layout, Question, cases_of_layouts, columns_of, layout_at, layouts
from trimtab.cost.search.uneven import uneven_layouts


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
        stage_again_s: By stage, what computing again takes for one microbatch, where layers have ways of their own.
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
    stage_again_s: tuple[float, ...] = ()
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
        tight: The fastest (or cheapest) of those that fit only if something is computed again, in order: seconds (or
            dollars) of a step with nothing computed again, and the layout.
        kept_tight: How many of those were kept at most.
    """

    evaluated: int
    verdicts: Mapping[Verdict, int]
    best: tuple[Candidate, ...]
    front: tuple[Candidate, ...]
    curve: tuple[Candidate, ...]
    ladders: Mapping[int, tuple[Layout, ...]]
    smallest: tuple[Candidate, ...]
    nearest: tuple[Candidate, ...]
    tight: tuple[tuple[float, Layout], ...] = ()
    kept_tight: int = 0


def find(
    question: Question,
    limits: Limits,
    *,
    time: Values,
    memory: Values,
    objective: Objective = Objective.TIME,
    keep: int = 64,
    keep_others: int | None = None,
    slack: float = 1.0,
) -> Findings:
    """Price every layout, those over two kinds of devices among them.

    Args:
        question: What is trained, on what.
        limits: What has to be kept.
        time: Constants of the closed forms of time.
        memory: Those of memory.
        objective: By which the best are ordered.
        keep: How many of the best, and of the smallest.
        keep_others: How many of the nearest and of those that fit if something is computed again; as many if None.
        slack: Part of the closed forms' bytes that has to fit: below 1 ``best`` and ``ladders`` hold layouts that only fit
            if they turn out to need less. Nothing else looks at it.
    """
    counts: Counter[Verdict] = Counter()
    evaluated = 0
    others = keep if keep_others is None else keep_others
    best, near, front, tight = _Kept(keep), _Kept(others), _Front(), _Kept(others)
    small, ladder = _Kept(keep), _Front()
    uneven = uneven_layouts(question, time=time, memory=memory, headroom=limits.headroom)
    for columns in chain(_uncut(question), uneven):
        priced = price(question, limits, columns, time=time, memory=memory)
        evaluated += len(priced.step_s)
        for verdict in Verdict:
            counts[verdict] += int(np.count_nonzero(priced.verdicts == verdict))
        fits = priced.verdicts == Verdict.FEASIBLE
        may_fit = priced.is_in_time & (priced.shortfall <= (1 - slack) * priced.bytes)
        best.add(columns, np.where(may_fit, priced.ordered_by(objective), np.inf))
        ladder.add(columns, priced, may_fit)
        small.add(columns, np.where(priced.is_in_time, priced.bytes, np.inf))
        front.add(columns, priced, fits)
        is_tight = _is_tight(question, limits, columns, priced, memory)
        tight.add(columns, np.where(is_tight, priced.ordered_by(objective), np.inf))
        if not counts[Verdict.FEASIBLE]:
            near.add(columns, np.where(priced.shortfall > 0, priced.shortfall, np.inf))

    def candidates(chosen: list[Layout]) -> tuple[Candidate, ...]:
        return price_of_layouts(question, limits, chosen, time=time, memory=memory)

    on_front = front.layouts()
    return Findings(
        evaluated=evaluated,
        verdicts={verdict: counts[verdict] for verdict in Verdict},
        best=candidates(best.layouts()),
        front=candidates(on_front),
        curve=candidates(front.fastest()),
        ladders=ladder.ladders(),
        smallest=candidates(small.layouts()),
        nearest=() if counts[Verdict.FEASIBLE] else candidates(near.layouts()),
        tight=tuple(zip(tight.values.tolist(), tight.layouts(), strict=True)),
        kept_tight=others,
    )


def _is_tight(
    question: Question, limits: Limits, columns: Mapping[str, np.ndarray], priced: Priced, memory: Values
) -> np.ndarray:
    """Where nothing is computed again and it does not fit, and would if everything were."""
    lacks: np.ndarray = (columns["recompute_quarters"] == 0) & (priced.verdicts == Verdict.MEMORY)
    if question.pools or not lacks.any():
        return np.zeros(len(lacks), dtype=bool)
    everything = {name: column[lacks] for name, column in columns.items()}
    everything["recompute_quarters"] = np.full(int(lacks.sum()), 4)
    needed = peak_memory(cases_of_layouts(question, everything), memory).largest_bytes
    lacks[lacks] = needed <= question.fabric.memory_bytes * (1 - limits.headroom)
    return lacks


def _uncut(question: Question) -> Iterator[Mapping[str, np.ndarray]]:
    """All layouts with even stages, with every column that those with a cut have."""
    for columns in layouts(question):
        none = np.zeros(len(columns["devices"]), dtype=np.int64)
        yield (
            {**columns, **dict.fromkeys(("first_layers", "head_layers"), none)} if question.pools else columns
        )


def price_of_layout(
    question: Question, limits: Limits, layout: Layout, *, time: Values, memory: Values
) -> Candidate:
    """One layout, with where its time and its memory go."""
    (found,) = price_of_layouts(question, limits, [layout], time=time, memory=memory)
    return found


def price_of_layouts(
    question: Question, limits: Limits, chosen: Sequence[Layout], *, time: Values, memory: Values
) -> tuple[Candidate, ...]:
    """Layouts in their order, with where their time and their memory go."""
    found: dict[int, Candidate] = {}
    for is_cut in (False, True):
        places = [place for place, layout in enumerate(chosen) if (layout.first_layers > 0) is is_cut]
        if places:
            priced = _candidates(question, limits, [chosen[place] for place in places], time, memory)
            found |= dict(zip(places, priced, strict=True))
    return tuple(found[place] for place in range(len(chosen)))


def _candidates(
    question: Question, limits: Limits, chosen: Sequence[Layout], time: Values, memory: Values
) -> Iterator[Candidate]:
    """All with a cut between two pools, or none."""
    single = [columns_of(layout) for layout in chosen]
    columns = {name: np.concatenate([one[name] for one in single]) for name in single[0]}
    priced = price(question, limits, columns, time=time, memory=memory)
    held = priced.held

    def each(figures: Floats) -> list[float]:
        found: list[float] = np.broadcast_to(figures, (len(chosen),)).tolist()
        return found

    parts = {name: each(getattr(priced.times, name)) for name in StepTimes.__dataclass_fields__}
    activations = np.maximum(held.first_bytes, held.last_bytes)
    used = held.state_bytes + held.gathered_bytes + held.posted_bytes + activations
    classes = {
        "state_bytes": each(held.state_bytes),
        "gathered_bytes": each(held.gathered_bytes),
        "posted_bytes": each(held.posted_bytes),
        "activation_bytes": each(activations),
        "fragmentation_bytes": each(used * (held.fragmentation - 1)),
        "overhead_bytes": each(held.overhead_bytes),
    }
    figures = zip(
        chosen, each(priced.step_s), each(priced.bytes), each(priced.usd), each(priced.shortfall), strict=True
    )
    for index, (layout, step_s, needed, usd, shortfall) in enumerate(figures):
        yield Candidate(
            layout=layout,
            step_s=step_s,
            parts={name: seconds[index] for name, seconds in parts.items()},
            closed_form_bytes=needed,
            memory_bytes=needed,
            memory_parts={name: found[index] for name, found in classes.items()},
            usd_per_step=None if limits.usd_per_device_hour is None else usd,
            verdict=Verdict(priced.verdicts[index]),
            shortfall_bytes=shortfall,
        )


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

    def add(self, columns: Mapping[str, np.ndarray], priced: Priced, fits: np.ndarray) -> None:
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

    def fastest(self) -> list[Layout]:
        """For each number of devices."""
        return [layout_at(columns, 0) for _, (_, _, columns) in sorted(self.by_devices.items())]

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
