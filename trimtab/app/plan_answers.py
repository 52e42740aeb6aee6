"""The best strategies for a job on some cards: a search, its best judged, weighed and compiled."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimtab.app.compiling import cluster_of
from trimtab.app.job_reading import read_job
from trimtab.app.named_layouts import layout_of
from trimtab.app.plan_questions import (
    Asked,
    cluster_of_probe,
    constants,
    price_of_question,
    probe_of,
    question_of,
)
from trimtab.app.plan_search import MOST_SHOWN, MOST_TRIED, PoolAlone, Search, Strategy, joined, scales_of
from trimtab.catalog import (
    Cluster,
)
from trimtab.cost.calibration import (
    Calibrated,
)
from trimtab.cost.estimates import Price
from trimtab.cost.search import (
    SLACK,
    Candidate,
    Findings,
    Largest,
    Limits,
    Mixture,
    Objective,
    Question,
    find,
    largest,
    strong_and_weak,
)
from trimtab.spec import LoadedJob


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
    probe = probe_of(asked.probe)
    return price_of_question(loaded, cluster_of(loaded) if probe is None else cluster_of_probe(probe), asked)


def answer_for(loaded: LoadedJob, asked: Asked) -> Answer:
    """The best strategies for a job.

    Args:
        loaded: Its formulas and its number of devices are not looked at.
        asked: What is asked.

    Raises: As ``planning.plan_job``.
    """
    probe = probe_of(asked.probe)
    cluster = cluster_of(loaded) if probe is None else cluster_of_probe(probe)
    question = question_of(loaded, cluster, asked.devices, probe)
    price = price_of_question(loaded, cluster, asked)
    steps = loaded.job.train.steps
    limits = replace(
        asked.limits, steps=steps, usd_per_device_hour=price.usd_per_device_hour if price else None
    )
    # What is misspelt is told before the search, which takes seconds.
    named = layout_of(asked.other, devices=max(question.devices)) if asked.other else None
    time, memory, stack = constants(asked.measured, probe)
    findings = find(
        question,
        limits,
        time=time.values,
        memory=memory,
        objective=asked.objective,
        keep=MOST_TRIED,
        keep_others=MOST_SHOWN,
        slack=SLACK,
    )
    search = Search(
        loaded=loaded,
        cluster=cluster,
        question=question,
        limits=limits,
        time=time,
        memory=memory,
        scales=scales_of(loaded, cluster, question),
    )
    fine = search.refined(findings, asked.objective)
    findings = replace(findings, best=joined(findings.best, fine.best, asked.objective), curve=fine.curve)
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
        other=search.asked_about(named, best) if named else None,
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
