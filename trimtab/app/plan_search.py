"""From what a search found to strategies: judged by their schedules, weighed, compared, said as formulas."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from trimtab.app.losses import rule_on_loss
from trimtab.app.plan_questions import Asked, leaves_shares_open, price_of_question
from trimtab.app.replicas import saves
from trimtab.catalog import (
    Cluster,
    FlopConvention,
)
from trimtab.cost.calibration import (
    Calibrated,
)
from trimtab.cost.closed_form import Values
from trimtab.cost.search import (
    SLACK,
    Candidate,
    Comparison,
    Findings,
    Layout,
    Limits,
    Objective,
    Pool,
    Question,
    Refined,
    Scales,
    SumTime,
    Verdict,
    better_sum,
    compare,
    find,
    formulas_of,
    judged_step_s,
    price_of_layout,
    price_of_layouts,
    priced_cases,
    refined,
    settings_of,
    sum_times,
)
from trimtab.plan.physical import Plan
from trimtab.spec import LoadedJob, parse_strategy
from trimtab.terms import OnLoss

JUDGED = 24
"""Of the best by closed forms, judged by their real schedules."""

MOST_TRIED = 1000
"""Of the best by closed forms, those that are kept to be judged and weighed: many turn out not to fit."""

_MOST_WEIGHED = 40
"""Plans that are compiled and weighed before it is given up to find as many as are to be shown."""

_RUNGS = 4
"""Of a number of devices, layouts that are weighed for the curve."""

_SMALLEST = 6
"""Of what does not fit, those that are weighed."""

MOST_SHOWN = 1000
"""Of layouts that do not fit, in a document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """One answer.

    Args:
        candidate: Priced by closed forms.
        step_s: With its pipeline simulated.
        low_s, high_s: Nine of ten lie between.
        comparison: With the best one.
        formulas: That say it.
        settings: Keys of the job that go with them.
        mfu: Useful FLOPs over the declared peak, by the convention of attention.
        sums: Of the first one: every way to sum gradients, the shortest first, as ``explain`` counts them.
    """

    candidate: Candidate
    step_s: float
    low_s: float
    high_s: float
    comparison: Comparison
    formulas: str
    settings: Mapping[str, int | str]
    mfu: Mapping[FlopConvention, float]
    sums: tuple[SumTime, ...] = ()

    @property
    def usd_per_step(self) -> float | None:
        """With its pipeline simulated; None without a price."""
        usd = self.candidate.usd_per_step
        return None if usd is None else usd * self.step_s / self.candidate.step_s


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolAlone:
    """The best strategy on the devices of one kind alone.

    Args:
        usd_per_device_hour: None if no price is known.
        strategy: None if nothing keeps every limit there.
    """

    pool: Pool
    usd_per_device_hour: float | None
    strategy: Strategy | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """One question, with what prices it."""

    loaded: LoadedJob
    cluster: Cluster
    question: Question
    limits: Limits
    time: Calibrated
    memory: Values
    scales: Scales

    def judged(self, candidate: Candidate) -> tuple[float, Candidate]:
        """With its pipeline simulated."""
        step_s = judged_step_s(self.question, candidate.layout, self.time.values, candidate.stage_again_s)
        return step_s, candidate

    def refined(self, findings: Findings, objective: Objective) -> Refined:
        """The best that fit by closed forms, with what is computed again chosen layer by layer."""
        fitting = tuple(one for one in findings.best if one.verdict is Verdict.FEASIBLE)
        return refined(
            self.question,
            self.limits,
            replace(findings, best=fitting),
            self.cluster,
            time=self.time.values,
            memory=self.memory,
            objective=objective,
            keep=JUDGED,
        )

    def best_of(
        self, findings: Findings, objective: Objective, top: int
    ) -> tuple[tuple[Strategy, ...], Candidate | None]:
        """The best by their real schedules that can be compiled and fit as they are weighed, and the first of them.

        Where the fastest by closed forms do not fit, those follow that need less and less.
        """
        order = _by(objective)
        weighed = 0
        chosen: list[tuple[float, Candidate]] = []
        for step_s, candidate in self._in_turn(findings, order):
            if len(chosen) == top or weighed == _MOST_WEIGHED:
                break
            if not self.scales.may_fit(self.question, self.limits, candidate):
                continue
            weighed += 1
            fitting = self.scales.fitting(self.question, self.limits, [candidate], most=1)
            chosen += [(step_s, one) for one in fitting]
        chosen.sort(key=order)
        best = chosen[0][1] if chosen else None
        return tuple(self.strategy(one, best, step_s=step_s) for step_s, one in chosen), best

    def _in_turn(
        self, findings: Findings, order: Callable[[tuple[float, Candidate]], float]
    ) -> Iterator[tuple[float, Candidate]]:
        """Some at a time of the best by closed forms, by their simulated steps; then what needs less and less.

        What is like others that did not fit is left out of each time.
        """
        waiting = list(findings.best)
        while waiting:
            trying = [one for one in waiting if self.scales.may_fit(self.question, self.limits, one)][:JUDGED]
            if not trying:
                break
            waiting = [one for one in waiting if one not in trying]
            yield from sorted(map(self.judged, trying), key=order)
        layouts = [layout for ladder in findings.ladders.values() for layout in ladder]
        rungs = price_of_layouts(
            self.question, self.limits, layouts, time=self.time.values, memory=self.memory
        )
        yield from map(self.judged, sorted(rungs, key=lambda one: order((one.step_s, one))))
        yield from map(self.judged, findings.smallest[:_SMALLEST])

    def curve(self, findings: Findings, strategies: Sequence[Strategy]) -> Sequence[Candidate]:
        """For each number of devices the fastest that fits: one that is shown, else the first of some that are weighed."""
        shown = {one.candidate.layout.devices: one.candidate for one in reversed(strategies)}
        found: list[Candidate] = []
        for candidate in findings.curve:
            devices = candidate.layout.devices
            ladder = map(self._priced, findings.ladders.get(devices, ()))
            fitting = self.scales.fitting(
                self.question, self.limits, chain(ladder, [candidate]), most=1 + _RUNGS
            )
            one = shown.get(devices) or next(fitting, None)
            found += [one] if one else []
        return found

    def nearest(self, findings: Findings) -> tuple[Candidate, ...]:
        """What does not fit, by what it lacks: those that need least are weighed, the others by closed forms."""
        smallest = [
            self.scales.weighed(self.question, self.limits, one) for one in findings.smallest[:_SMALLEST]
        ]
        known = {one.layout for one in smallest}
        others = [one for one in findings.nearest if one.layout not in known]
        return (*sorted(smallest, key=lambda one: one.shortfall_bytes), *others)

    def _priced(self, layout: Layout) -> Candidate:
        return price_of_layout(self.question, self.limits, layout, time=self.time.values, memory=self.memory)

    def summed(self, strategy: Strategy) -> Strategy:
        """The same with the shortest sums of gradients, if they save enough of a step and can be compiled."""
        candidate = strategy.candidate
        layout = candidate.layout
        sums = sum_times(self.question, layout, self.cluster, shares=self.scales.shares_of(layout))
        better = better_sum(sums, strategy.step_s)
        if better is not None:
            candidate = replace(candidate, layout=replace(layout, reduce=better.clause))
            found = self.scales.weighed(self.question, self.limits, candidate)
            if not found.refusal and found.shortfall_bytes == 0:
                formulas = formulas_of(self.question, found.layout)
                return replace(strategy, candidate=found, formulas=formulas, sums=sums)
        return replace(strategy, sums=sums)

    def alone(self, pool: Pool, asked: Asked) -> PoolAlone:
        """The best on one kind of devices: as many as were asked for and there are, on the same links."""
        found = price_of_question(self.loaded, pool.cluster, asked)
        price = found.usd_per_device_hour if found else None
        counts = tuple(sorted({min(count, pool.num_devices) for count in self.question.devices}))
        question = replace(self.question, fabric=pool.fabric, devices=counts, pools=())
        limits = replace(self.limits, usd_per_device_hour=price)
        findings = find(
            question,
            limits,
            time=self.time.values,
            memory=self.memory,
            objective=asked.objective,
            keep=MOST_TRIED,
            keep_others=MOST_SHOWN,
            slack=SLACK,
        )
        search = replace(
            self,
            cluster=pool.cluster,
            question=question,
            limits=limits,
            scales=scales_of(self.loaded, pool.cluster, question),
        )
        fine = search.refined(findings, asked.objective)
        findings = replace(findings, best=joined(findings.best, fine.best, asked.objective), curve=fine.curve)
        strategies, _ = search.best_of(findings, asked.objective, 1)
        return PoolAlone(pool=pool, usd_per_device_hour=price, strategy=strategies[0] if strategies else None)

    def strategy(
        self,
        candidate: Candidate,
        best: Candidate | None,
        *,
        step_s: float | None = None,
    ) -> Strategy:
        """A layout as an answer; by closed forms alone unless its simulated time is given."""
        seconds = step_s or candidate.step_s
        spread = self.time.factor_of(priced_cases(self.question, candidate.layout))
        text = formulas_of(self.question, candidate.layout)
        settings: dict[str, int | str] = dict(settings_of(self.question, candidate.layout))
        if leaves_shares_open(self.loaded):
            settings["fault_tolerance.shares"] = candidate.layout.data
        return Strategy(
            candidate=candidate,
            step_s=seconds,
            low_s=seconds / spread,
            high_s=seconds * spread,
            comparison=compare(
                self.question, best or candidate, candidate, belief=self.time.belief, fitted=self.time.fitted
            ),
            formulas=text,
            settings=settings,
            mfu=self._mfu(seconds, candidate.layout),
        )

    def asked_about(self, layout: Layout, best: Candidate | None) -> Strategy:
        """The layout that the user names."""
        candidate = self.scales.weighed(self.question, self.limits, self._priced(layout))
        return self.strategy(candidate, best)

    def _mfu(self, step_s: float, layout: Layout) -> Mapping[FlopConvention, float]:
        question = self.question
        tokens = question.batch * question.sequence
        most = step_s * _peak_flops_per_s(question, layout.devices)
        return {
            convention: flops * tokens / most
            for convention, flops in question.network.flops_by_convention(question.sequence).items()
        }


def scales_of(loaded: LoadedJob, cluster: Cluster, question: Question) -> Scales:
    def shares(layout: Layout) -> int | None:
        """A replica gets one where the job leaves it open."""
        return layout.data if leaves_shares_open(loaded) else question.shares

    def refuse(asked: Question, layout: Layout, plan: Plan) -> None:
        if loaded.job.fault_tolerance.on_loss is not OnLoss.AUTO:
            program = parse_strategy(formulas_of(asked, layout), source="plan")
            rule_on_loss(replace(loaded, program=program), plan)

    return Scales(cluster, shares=shares, saves=saves(loaded.job), refuse=refuse)


def joined(
    first: Sequence[Candidate], second: Sequence[Candidate], objective: Objective
) -> tuple[Candidate, ...]:
    """Both, each layout once, the best by closed forms first."""
    order = _by(objective)
    every = {one.layout: one for one in (*first, *second)}
    return tuple(sorted(every.values(), key=lambda one: order((one.step_s, one))))


def _by(objective: Objective) -> Callable[[tuple[float, Candidate]], float]:
    """By seconds, or by dollars: devices of one kind cost alike."""
    return lambda pair: pair[0] * (1 if objective is Objective.TIME else pair[1].layout.devices)


def _peak_flops_per_s(question: Question, devices: int) -> float:
    """Of the first so many devices together."""
    if not question.pools:
        return devices * question.fabric.peak_flops_per_s
    first = min(devices, question.pools[1].first)
    one, two = (pool.fabric.peak_flops_per_s for pool in question.pools)
    return first * one + (devices - first) * two
