"""The best strategies for a job on some cards: a search, its best judged and compiled."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from trimtab.app.compiling import cluster_of, training_of
from trimtab.app.job_reading import read_job
from trimtab.app.losses import rule_on_loss
from trimtab.app.named_layouts import layout_of
from trimtab.app.replicas import saves
from trimtab.catalog import (
    THIS_MACHINE,
    Cluster,
    FlopConvention,
    Machine,
    Probe,
    read_prices,
    read_probe,
)
from trimtab.catalog import Price as Offer
from trimtab.catalog import cluster as cluster_named
from trimtab.cost.calibration import (
    Belief,
    Calibrated,
    by_source,
    calibrate,
    calibrated_on,
    measured_runs,
    published_fits,
    reported_bytes,
    step_seconds,
)
from trimtab.cost.closed_form import THIS_RUNTIME, Values
from trimtab.cost.estimates import PRICE_KEY, Price, offered_price
from trimtab.cost.search import (
    SLACK,
    Candidate,
    Comparison,
    Findings,
    Growing,
    Largest,
    Layout,
    Limits,
    Mixture,
    Objective,
    Pool,
    Question,
    Refined,
    Scales,
    SumTime,
    Verdict,
    better_sum,
    compare,
    fabric_of,
    fabric_of_probe,
    find,
    formulas_of,
    judged_step_s,
    largest,
    pools_of,
    price_of_layout,
    price_of_layouts,
    priced_cases,
    refined,
    settings_of,
    strong_and_weak,
    sum_times,
)
from trimtab.plan.physical import Plan
from trimtab.spec import LoadedJob, parse_strategy
from trimtab.terms import InputError, OnLoss, nearest_name

JUDGED = 24
"""Of the best by closed forms, judged by their real schedules."""

_MOST_TRIED = 1000
"""Of the best by closed forms, those that are kept to be judged and weighed: many turn out not to fit."""

_MOST_WEIGHED = 40
"""Plans that are compiled and weighed before it is given up to find as many as are to be shown."""

_RUNGS = 4
"""Of a number of devices, layouts that are weighed for the curve."""

_SMALLEST = 6
"""Of what does not fit, those that are weighed."""

EVERY = "every"
"""Powers of two, and all."""

_MOST_SHOWN = 1000
"""Of layouts that do not fit, in a document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the command line asks for.

    Args:
        cluster: Where, as written: ``512xH100@Lambda``; the job's cluster if None.
        devices: Numbers of devices to look at, as written: ``64,128``; all of the cluster if None.
        limits: Without a price.
        price: In dollars a device and hour; None: the provider's, else the job's, else the newest offer.
        provider: The only one whose offers count; None: all.
        prices: A table of the user's own, which goes before the catalog; None for none.
        top: How many strategies to show.
        other: A layout to explain, as written: ``tp=8, pp=4``; None for none.
        measured: A file of measured runs of this stack; None for none.
        probe: A file with a probe of this machine; None for none.
        out: Where to write the best one's formulas; nowhere if None.
        growing: What is to be as large as fits; None for nothing.
        beside: Other places to compare with, written as the cluster.
        plot: Where to draw the curves; nowhere if None.
    """

    cluster: str | None = None
    devices: str | None = None
    limits: Limits
    objective: Objective = Objective.TIME
    price: float | None = None
    provider: str | None = None
    prices: Path | None = None
    top: int = 5
    other: str | None = None
    measured: Path | None = None
    probe: Path | None = None
    out: Path | None = None
    growing: Growing | None = None
    beside: Sequence[str] = ()
    plot: Path | None = None
    is_json: bool = False


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
class Answer:
    """What a search says.

    Args:
        place: The cluster's name, and the provider's where one was named.
        price: Of a device, and who says so; None if nobody does.
        time: Constants of time, which the steps were priced by.
        stack: What the constants were learned from.
        strategies: The best, in order.
        curve: The best for each number of devices.
        front: That no other beats in time, dollars, memory and devices.
        nearest: What does not fit, by what it lacks; empty if something fits.
        other: The layout that was asked about.
        largest: What fits, of what was asked to grow.
        num_refined: Layouts whose layers were looked at one by one.
        is_exact: Whether no other layout could be better than the first by closed forms, layer by layer.
        alone: The two kinds of devices by themselves, where there are two.
        mixture: Both together beside the stronger kind alone; None where one of them keeps no limit.
    """

    loaded: LoadedJob
    cluster: Cluster
    question: Question
    limits: Limits
    place: str
    price: Price | None
    time: Calibrated
    stack: str
    findings: Findings
    strategies: tuple[Strategy, ...]
    curve: tuple[Strategy, ...]
    front: tuple[Strategy, ...]
    nearest: tuple[Candidate, ...]
    other: Strategy | None
    largest: Largest | None = None
    objective: Objective = Objective.TIME
    num_refined: int = 0
    is_exact: bool = True
    alone: tuple[PoolAlone, ...] = ()
    mixture: Mixture | None = None

    @property
    def recommended(self) -> Strategy | None:
        """The first strategy, or that of the devices of one kind alone if it is better."""
        found = [
            *self.strategies[:1],
            *(alone.strategy for alone in self.alone if alone.strategy is not None),
        ]

        def order(strategy: Strategy) -> float:
            usd = strategy.usd_per_step
            return usd if self.objective is Objective.DOLLARS and usd is not None else strategy.step_s

        return min(found, key=order, default=None)


def answer_of(path: str, overrides: Sequence[str], asked: Asked) -> Answer:
    """The best strategies for a job file, whatever its own says."""
    return answer_for(read_job(path, (*overrides, *_WITHOUT_STRATEGY)), asked)


def price_at(path: str, overrides: Sequence[str], asked: Asked) -> Price | None:
    """What a device costs where ``answer_of`` would search.

    Raises: As ``answer_of`` for a cluster, a provider or a table of prices that cannot be.
    """
    loaded = read_job(path, (*overrides, *_WITHOUT_STRATEGY))
    probe = _probe(asked.probe)
    return _price(loaded, cluster_of(loaded) if probe is None else _cluster_of_probe(probe), asked)


def answer_for(loaded: LoadedJob, asked: Asked) -> Answer:
    """The best strategies for a job.

    Args:
        loaded: Its formulas and its number of devices are not looked at.
        asked: What is asked.

    Raises: As ``planning.plan_job``.
    """
    probe = _probe(asked.probe)
    cluster = cluster_of(loaded) if probe is None else _cluster_of_probe(probe)
    question = question_of(loaded, cluster, asked.devices, probe)
    price = _price(loaded, cluster, asked)
    steps = loaded.job.train.steps
    limits = replace(
        asked.limits, steps=steps, usd_per_device_hour=price.usd_per_device_hour if price else None
    )
    time, memory, stack = constants(asked.measured, probe)
    findings = find(
        question,
        limits,
        time=time.values,
        memory=memory,
        objective=asked.objective,
        keep=_MOST_TRIED,
        keep_others=_MOST_SHOWN,
        slack=SLACK,
    )
    search = _Search(
        loaded=loaded,
        cluster=cluster,
        question=question,
        limits=limits,
        time=time,
        memory=memory,
        scales=_scales(loaded, cluster, question),
    )
    fine = search.refined(findings, asked.objective)
    findings = replace(findings, best=_joined(findings.best, fine.best, asked.objective), curve=fine.curve)
    strategies, best = search.best_of(findings, asked.objective, asked.top)
    strategies = tuple(search.summed(found) for found in strategies[:1]) + strategies[1:]
    alone = tuple(search.alone(pool, asked) for pool in question.pools)
    return Answer(
        loaded=loaded,
        cluster=cluster,
        question=question,
        limits=limits,
        place=cluster.name if asked.provider is None else f"{cluster.name}@{asked.provider}",
        price=price,
        time=time,
        stack=stack,
        findings=findings,
        strategies=strategies,
        curve=tuple(search.strategy(candidate, best) for candidate in search.curve(findings, strategies)),
        front=tuple(search.strategy(candidate, best) for candidate in findings.front),
        nearest=() if strategies else search.nearest(findings),
        other=search.asked_about(asked.other, best) if asked.other else None,
        largest=largest(
            question, limits, time=time.values, memory=memory, what=asked.growing, scales=search.scales
        )
        if asked.growing
        else None,
        objective=asked.objective,
        num_refined=fine.tried,
        is_exact=fine.is_exact,
        alone=alone,
        mixture=_mixture(strategies, alone),
    )


def _scales(loaded: LoadedJob, cluster: Cluster, question: Question) -> Scales:
    def shares(layout: Layout) -> int | None:
        """A replica gets one where the job leaves it open."""
        return layout.data if _leaves_shares_open(loaded) else question.shares

    def refuse(asked: Question, layout: Layout, plan: Plan) -> None:
        if loaded.job.fault_tolerance.on_loss is not OnLoss.AUTO:
            program = parse_strategy(formulas_of(asked, layout), source="plan")
            rule_on_loss(replace(loaded, program=program), plan)

    return Scales(cluster, shares=shares, saves=saves(loaded.job), refuse=refuse)


def _mixture(strategies: Sequence[Strategy], alone: Sequence[PoolAlone]) -> Mixture | None:
    if not strategies or not alone:
        return None
    strong, weak = strong_and_weak(tuple(found.pool for found in alone))
    of_strong = next(found.strategy for found in alone if found.pool is strong)
    if of_strong is None:
        return None
    together = strategies[0]
    return Mixture(
        strong=strong,
        weak=weak,
        together_s=together.step_s,
        alone_s=of_strong.step_s,
        together_usd=together.usd_per_step,
        alone_usd=of_strong.usd_per_step,
    )


_WITHOUT_STRATEGY = ("parallelism=-- none", "orchestration.devices=1")
"""A search says who computes what, and on how many devices."""


def _probe(path: Path | None) -> Probe | None:
    if path is None:
        return None
    try:
        return read_probe(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read a probe: {error}") from error


def _cluster_of_probe(probe: Probe) -> Cluster:
    return cluster_named(
        THIS_MACHINE,
        machine=Machine(
            num_devices=probe.num_devices,
            cores=probe.num_devices,
            memory_bytes=probe.memory_bytes * probe.num_devices,
            fp32_flops_per_s=min(probe.flops_per_s),
        ),
    )


def question_of(
    loaded: LoadedJob, cluster: Cluster, devices: str | None, probe: Probe | None = None
) -> Question:
    """What is asked of a job on a cluster.

    Raises: InputError for numbers of devices that are none; SpaceError for devices whose rates are not known.
    """
    training = training_of(loaded)
    counts: tuple[int, ...] = (cluster.num_devices,)
    if devices == EVERY:
        sizes = {1 << power for power in range(cluster.num_devices.bit_length())}
        counts = tuple(sorted({*sizes, cluster.num_devices}))
    elif devices is not None:
        try:
            counts = tuple(sorted({int(part) for part in devices.split(",")}))
        except ValueError:
            raise InputError(
                f"--devices {devices}: it takes whole numbers, separated by commas: 64,128,256"
            ) from None
    return Question(
        network=training.network,
        sequence=training.sequence,
        batch=training.batch,
        fabric=fabric_of(cluster, training.compute) if probe is None else fabric_of_probe(probe),
        devices=counts,
        compute=training.compute,
        shares=None if _leaves_shares_open(loaded) else training.shares,
        num_states=training.num_states,
        pools=_pools(cluster, training.compute, counts) if probe is None else (),
    )


def _pools(cluster: Cluster, compute: str, counts: Sequence[int]) -> tuple[Pool, ...]:
    """Of the devices that are looked at: two, or none where they are alike."""
    pools = pools_of(cluster, compute)
    if not pools or max(counts) <= pools[1].first:
        return ()
    first, second = pools
    asked = replace(second.fabric, num_devices=max(counts) - second.first)
    return first, replace(second, fabric=asked)


def _leaves_shares_open(loaded: LoadedJob) -> bool:
    return loaded.origins["fault_tolerance.shares"].startswith("auto")


def growing_of(text: str | None) -> Growing | None:
    """What ``--fit`` names.

    Raises: InputError for what there is not.
    """
    if text is None:
        return None
    known = [what.value for what in Growing]
    if text not in known:
        nearest = nearest_name(text, known)
        hint = f"  Did you mean {nearest!r}?" if nearest else ""
        raise InputError(f"--fit {text}: there is {', '.join(known)}.{hint}")
    return Growing(text)


def constants(measured: Path | None, probe: Probe | None = None) -> tuple[Calibrated, Values, str]:
    """Of time, of memory, and what those of time were learned from.

    Memory is that of this runtime unless measured runs tell it; what is shown is weighed besides.

    Raises: InputError for a file that holds no measured runs.
    """
    fits = published_fits()
    time, memory = fits.time_belief(), fits.memory_belief()
    if probe is not None:
        said = f"a probe of this machine of {probe.taken_at}, {len(probe.runs)} real runs of it among them"
        return calibrated_on(time, probe), THIS_RUNTIME, said
    if measured is None:
        names = f"{len(fits.time)} published stacks"
        return _calibrated(time), THIS_RUNTIME, names
    try:
        with measured.open(encoding="utf-8", newline="") as file:
            runs = measured_runs(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{measured}: cannot read measured runs: {error}") from error
    timed = [run for run in runs if not run.problem]
    weighed = [run for run in runs if run.peak_bytes is not None and run.columns]
    if not timed:
        problems = "; ".join(dict.fromkeys(run.problem for run in runs)) or "no rows"
        raise InputError(
            f"{measured}: no row with a plan and a time was found: {problems}\n  bench/README.md says what is needed"
        )
    sources = ", ".join(by_source(timed))
    return (
        calibrate(step_seconds, timed, np.asarray([run.step_s for run in timed], dtype=np.float64), time),
        calibrate(
            reported_bytes, weighed, np.asarray([run.peak_bytes for run in weighed], dtype=np.float64), memory
        ).values
        if weighed
        else THIS_RUNTIME,
        f"{len(timed)} measured runs of {sources}, and {len(fits.time)} published stacks",
    )


def _calibrated(belief: Belief) -> Calibrated:
    return calibrate(step_seconds, [], np.zeros(0), belief)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Search:
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
        found = _price(self.loaded, pool.cluster, asked)
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
            keep=_MOST_TRIED,
            keep_others=_MOST_SHOWN,
            slack=SLACK,
        )
        search = replace(
            self,
            cluster=pool.cluster,
            question=question,
            limits=limits,
            scales=_scales(self.loaded, pool.cluster, question),
        )
        fine = search.refined(findings, asked.objective)
        findings = replace(
            findings, best=_joined(findings.best, fine.best, asked.objective), curve=fine.curve
        )
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
        if _leaves_shares_open(self.loaded):
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

    def asked_about(self, text: str, best: Candidate | None) -> Strategy:
        """The layout that the user names."""
        layout = layout_of(text, devices=max(self.question.devices))
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


def _joined(
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


def _price(loaded: LoadedJob, cluster: Cluster, asked: Asked) -> Price | None:
    """Of a device and hour: the question's, else its provider's, else the job's, else the newest offers.

    Raises: InputError for a question with two answers, PricesError for a table with mistakes, UnknownNameError for a provider
        without an offer.
    """
    if asked.price is not None:
        if asked.provider is not None:
            raise InputError(
                f"--price {asked.price:g} and a cluster at {asked.provider} are two prices; keep one"
            )
        return Price(usd_per_device_hour=asked.price, source="--price")
    own = _own_prices(asked.prices)
    written = loaded.job.orchestration.price_usd_per_device_hour
    if written is not None and asked.provider is None:
        return Price(usd_per_device_hour=written, source=PRICE_KEY)
    kinds = [node.accelerator.name for node in cluster.nodes for _ in range(node.num_devices)]
    return offered_price(kinds, own=own, provider=asked.provider)


def _own_prices(path: Path | None) -> Sequence[Offer]:
    if path is None:
        return ()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read prices: {error}") from error
    return read_prices(text, source=str(path))
