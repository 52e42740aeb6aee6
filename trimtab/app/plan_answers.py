"""The best strategies for a job on some cards: a search, its best judged and compiled."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
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
    read_probe,
)
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
from trimtab.cost.estimates import PRICE_KEY, offered_price
from trimtab.cost.search import (
    SLACK,
    Candidate,
    Comparison,
    Findings,
    Growing,
    Largest,
    Layout,
    Limits,
    Objective,
    Question,
    Scales,
    compare,
    fabric_of,
    fabric_of_probe,
    find,
    formulas_of,
    judged_step_s,
    largest,
    price_of_layout,
    priced_cases,
    settings_of,
)
from trimtab.plan.physical import Plan
from trimtab.spec import LoadedJob, parse_strategy
from trimtab.terms import InputError, OnLoss, nearest_name

JUDGED = 24
"""Of the best by closed forms, judged by their real schedules, at a time."""

_MOST_WEIGHED = 48
"""Plans that are compiled and weighed before it is given up to find one that fits."""

EVERY = "every"
"""Powers of two, and all."""

_SMALLEST = 12
"""Of those that need least by closed forms, weighed where nothing else fits."""

_RUNGS = 12
"""Of a ladder, tried for each number of devices."""

_MOST_SHOWN = 1000
"""Of layouts that do not fit, in a document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the command line asks for.

    Args:
        devices: Numbers of devices to look at, as written: ``64,128``; all of the cluster if None.
        limits: Without a price.
        price: In dollars a device and hour; the catalog's newest offer if None.
        top: How many strategies to show.
        other: A layout to explain, as written: ``tp=8, pp=4``; None for none.
        measured: A file of measured runs of this stack; None for none.
        probe: A file with a probe of this machine; None for none.
        out: Where to write the best one's formulas; nowhere if None.
        growing: What is to be as large as fits; None for nothing.
        beside: Other clusters to compare with.
        plot: Where to draw the curves; nowhere if None.
    """

    devices: str | None = None
    limits: Limits
    objective: Objective = Objective.TIME
    price: float | None = None
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
    """

    candidate: Candidate
    step_s: float
    low_s: float
    high_s: float
    comparison: Comparison
    formulas: str
    settings: Mapping[str, int | str]
    mfu: Mapping[FlopConvention, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a search says.

    Args:
        price_source: Who says what a device costs, and when; empty without a price.
        stack: What the constants were learned from.
        strategies: The best, in order.
        curve: The best for each number of devices.
        front: That no other beats in time, dollars, memory and devices, by closed forms.
        nearest: What does not fit, by what it lacks; empty if something fits.
        other: The layout that was asked about.
        largest: What fits, of what was asked to grow.
    """

    loaded: LoadedJob
    cluster: Cluster
    question: Question
    limits: Limits
    price_source: str
    stack: str
    findings: Findings
    strategies: tuple[Strategy, ...]
    curve: tuple[Strategy, ...]
    front: tuple[Strategy, ...]
    nearest: tuple[Candidate, ...]
    other: Strategy | None
    largest: Largest | None = None


def answer_of(path: str, overrides: Sequence[str], asked: Asked) -> Answer:
    """The best strategies for a job file, whatever its own says."""
    return answer_for(read_job(path, (*overrides, *_WITHOUT_STRATEGY)), asked)


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
    price, price_source = _price(loaded, cluster, asked.price)
    steps = loaded.job.train.steps
    limits = replace(asked.limits, steps=steps, usd_per_device_hour=price)
    time, memory, stack = constants(asked.measured, probe)
    findings = find(
        question,
        limits,
        time=time.values,
        memory=memory,
        objective=asked.objective,
        keep=_MOST_SHOWN,
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
    chosen = search.best(findings, asked.top, asked.objective)
    best = chosen[0][1] if chosen else None
    return Answer(
        loaded=loaded,
        cluster=cluster,
        question=question,
        limits=limits,
        price_source=price_source,
        stack=stack,
        findings=findings,
        strategies=tuple(search.strategy(candidate, best, step_s=step_s) for step_s, candidate in chosen),
        curve=tuple(search.strategy(candidate, best) for candidate in search.curve(findings, chosen)),
        front=tuple(search.strategy(candidate, best) for candidate in findings.front),
        nearest=() if chosen else search.nearest(findings),
        other=search.asked_about(asked.other, best) if asked.other else None,
        largest=largest(
            question,
            limits,
            time=time.values,
            memory=memory,
            what=asked.growing,
            scales=search.scales,
        )
        if asked.growing
        else None,
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
        clips=training.clips,
    )


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

    def best(self, findings: Findings, top: int, objective: Objective) -> Sequence[tuple[float, Candidate]]:
        """Some of the best that fit, with their pipelines simulated and their plans weighed."""
        found: list[tuple[float, Candidate]] = []
        waiting, left = list(findings.best), _MOST_WEIGHED
        while waiting and left > 0 and len(found) < top:
            trying = [one for one in waiting if self.scales.may_fit(self.question, self.limits, one)][:JUDGED]
            if not trying:
                break
            waiting = [one for one in waiting if one not in trying]
            for step_s, candidate in sorted(map(self._judged, trying), key=_by(objective)):
                if len(found) == top or left == 0:
                    break
                left -= 1
                fitting = self.scales.fitting(self.question, self.limits, [candidate], most=1)
                found += [(step_s, one) for one in fitting]
        if not found:
            # The fastest are alike, and need too much alike: what needs less and less, with what it costs in time.
            rungs = sorted(
                (self._priced(layout) for ladder in findings.ladders.values() for layout in ladder),
                key=lambda one: one.step_s,
            )
            fitting = self.scales.fitting(self.question, self.limits, rungs, most=_MOST_WEIGHED)
            found = [self._judged(one) for one in islice(fitting, top)]
        if not found:
            # Nothing that closed forms took for fast fits: what needs least is weighed, whatever was expected of it.
            smallest = [one for one in self.nearest(findings) if one.is_weighed and not one.shortfall_bytes]
            found = [self._judged(one) for one in smallest][:top]
        return sorted(found, key=_by(objective))

    def curve(self, findings: Findings, chosen: Sequence[tuple[float, Candidate]]) -> Sequence[Candidate]:
        """For each number of devices the fastest that fits: one that was chosen, else of a ladder."""
        known = {candidate.layout.devices: candidate for _, candidate in reversed(chosen)}
        found = []
        for devices, ladder in findings.ladders.items():
            rungs = map(self._priced, ladder)
            fitting = self.scales.fitting(self.question, self.limits, rungs, most=_RUNGS)
            one = known.get(devices) or next(fitting, None)
            found += [one] if one else []
        return found

    def nearest(self, findings: Findings) -> tuple[Candidate, ...]:
        """What does not fit, by what it lacks: those that need least are weighed, the others by closed forms."""
        weighed = [
            self.scales.weighed(self.question, self.limits, one) for one in findings.smallest[:_SMALLEST]
        ]
        return (
            *sorted(weighed, key=lambda one: one.shortfall_bytes),
            *findings.smallest[_SMALLEST:],
        )

    def _judged(self, candidate: Candidate) -> tuple[float, Candidate]:
        """With its pipeline simulated."""
        return judged_step_s(self.question, candidate.layout, self.time.values), candidate

    def _priced(self, layout: Layout) -> Candidate:
        return price_of_layout(self.question, self.limits, layout, time=self.time.values, memory=self.memory)

    def strategy(
        self, candidate: Candidate, best: Candidate | None, *, step_s: float | None = None
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
        candidate = self._priced(layout_of(text, devices=max(self.question.devices)))
        return self.strategy(self.scales.weighed(self.question, self.limits, candidate), best)

    def _mfu(self, step_s: float, layout: Layout) -> Mapping[FlopConvention, float]:
        question = self.question
        tokens = question.batch * question.sequence
        most = step_s * layout.devices * question.fabric.peak_flops_per_s
        return {
            convention: flops * tokens / most
            for convention, flops in question.network.flops_by_convention(question.sequence).items()
        }


def _by(objective: Objective) -> Callable[[tuple[float, Candidate]], float]:
    """By seconds, or by dollars: devices of one kind cost alike."""
    return lambda pair: pair[0] * (1 if objective is Objective.TIME else pair[1].layout.devices)


def _price(loaded: LoadedJob, cluster: Cluster, price: float | None) -> tuple[float | None, str]:
    """Of a device and hour, and who says so: the question, else the job, else the newest offers."""
    if price is not None:
        return price, "--price"
    written = loaded.job.orchestration.price_usd_per_device_hour
    if written is not None:
        return written, PRICE_KEY
    offered = offered_price(node.accelerator.name for node in cluster.nodes for _ in range(node.num_devices))
    return (offered.usd_per_device_hour, offered.source) if offered else (None, "")
