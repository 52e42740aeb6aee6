"""How should gradients be summed? Every route and bucket that a layout can take, by the calculator that ``explain`` uses."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trimtab.catalog import Cluster
from trimtab.cost.counts import Counts, counts_of
from trimtab.cost.early_times import update_communication
from trimtab.cost.search.plans import plan_of
from trimtab.cost.search.space import Layout, Question
from trimtab.cost.stage_times import Passes, stage_passes
from trimtab.plan.explanation import collective_uses
from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator
from trimtab.plan.reductions import SUM_OF_GRADIENTS
from trimtab.plan.traffic import UncarriedError, update_traffic_of
from trimtab.spec import StrategyError

BUCKETS = ("", "25MB", "100MB")
"""Gradients in one collective: all, or as many as DDP of torch takes by default, or four times as many."""

LEAST_GAIN = 0.01
"""Part of a step that another route has to save: below that nobody can say, and the backend knows more than this model."""

_ROUTES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("native", ()),
    ("ring", ()),
    ("reduce_scatter", ()),
    ("tree", ()),
    ("recursive_doubling", ()),
    ("hierarchical", ("node",)),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SumTime:
    """A way to sum gradients.

    Args:
        route: As formulas say it: ``hierarchical(node)``.
        bucket: ``25MB``; empty for one collective after the backward pass.
        exposed_s: Of a step: what the update's collectives take beyond what hides them, on the rank that waits longest.
        hidden_s: What runs beside the last backward pass, on the same rank.
    """

    route: str
    bucket: str
    exposed_s: float
    hidden_s: float

    @property
    def clause(self) -> str:
        """After ``REDUCE grads OVER axes``."""
        return f"USING {self.route}" + (f" BUCKET {self.bucket}" if self.bucket else "")


def sum_times(
    question: Question, layout: Layout, cluster: Cluster, *, shares: int | None
) -> tuple[SumTime, ...]:
    """Of every route and bucket that can carry the sums, the shortest first; of equals the one nearer to the default.

    Nothing where gradients are not summed in the update (stored in pieces, they are summed by every microbatch), or over
    one rank, or where experts have sums of their own.

    Args:
        question: That the layout answers.
        layout: Its own way of summing is not looked at.
        cluster: Whose links carry it.
        shares: As for the plan.
    """
    if layout.store >= 2 or layout.expert > 1 or layout.data * layout.context == 1:
        return ()
    found: list[SumTime] = []
    for bucket in BUCKETS:
        reduce = f"USING native BUCKET {bucket}" if bucket else ""
        try:
            plan = plan_of(question, replace(layout, reduce=reduce), cluster, shares=shares)
        except StrategyError:
            continue
        counts = counts_of(plan)
        passes = stage_passes(plan, counts, cluster)
        if passes is not None:
            found += _by_route(plan, counts, passes, cluster, bucket)
    order = {
        (route, bucket): (bucket != "", number)
        for number, (route, _) in enumerate(_ROUTES)
        for bucket in BUCKETS
    }
    return tuple(
        sorted(found, key=lambda time: (time.exposed_s, order[time.route.partition("(")[0], time.bucket]))
    )


def better_sum(times: tuple[SumTime, ...], step_s: float) -> SumTime | None:
    """The way that saves enough of a step against the default; None to leave it.

    A route other than the backend's own has to save as much again against the best bucket of that.
    """
    of_backend = [time for time in times if time.route == "native"]
    default = next((time for time in of_backend if not time.bucket), None)
    if default is None:
        return None
    found = default
    for time in (of_backend[0], times[0]):
        if found.exposed_s - time.exposed_s >= LEAST_GAIN * step_s:
            found = time
    return None if found is default else found


def _by_route(
    plan: Plan, counts: Counts, passes: tuple[Passes, ...], cluster: Cluster, bucket: str
) -> Iterator[SumTime]:
    """A plan with its sums sent another way: everything else of it stays."""
    for route, levels in _ROUTES:
        operators = tuple(_sent_by(operator, route, levels) for operator in plan.update.operators)
        changed = replace(plan, update=replace(plan.update, operators=operators))
        try:
            updates = update_traffic_of(changed)
        except UncarriedError:
            continue
        rerouted = replace(counts, uses=collective_uses(replace(changed, traffic=updates), counts.groups))
        exposed_s, hidden_s = max(
            update_communication(changed, rerouted, number, cluster, passes)
            for number in range(len(counts.groups))
        )
        name = f"{route}({', '.join(levels)})" if levels else route
        yield SumTime(route=name, bucket=bucket, exposed_s=exposed_s, hidden_s=hidden_s)


def _sent_by(operator: Operator, route: str, levels: tuple[str, ...]) -> Operator:
    is_sum = operator.because.reason == SUM_OF_GRADIENTS
    if not is_sum or operator.transfer is None:
        return operator
    return replace(operator, transfer=replace(operator.transfer, route=route, levels=levels))
