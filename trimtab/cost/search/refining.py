"""Layouts that fit only if something is computed again, with the least of it: layer by layer, rank by rank.

A layout that keeps everything is a lower bound of the step of all its choices. Those that do not fit are taken in the order
of that bound, until the bound is no better than what is known.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from operator import itemgetter

import numpy as np

from trimtab.catalog import Cluster
from trimtab.cost.closed_form import Values
from trimtab.cost.search.again import Alike, Chosen, Way, least_time
from trimtab.cost.search.finding import Candidate, Findings
from trimtab.cost.search.plain_layouts import Plain, plain_layouts
from trimtab.cost.search.pricing import SECONDS_PER_HOUR, Limits, Objective, Verdict
from trimtab.cost.search.space import Layout, Question
from trimtab.cost.search.ways import Share, shares_of_ways
from trimtab.cost.search.words import ALL
from trimtab.plan.pipelines import StageSchedule, ranks_of_stages

MOST_REFINED = 1000
"""Layouts whose choice is worked out; a search says when more would have been worth it."""

JUDGED_APART = 1.03
"""Bounds above the best that are tried all the same: pipelines, judged action by action, move so much against closed forms."""


SharesOf = Callable[[Layout, int | None], tuple[Share, ...]]
"""The ways to treat a layer of a layout, under a window or none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refined:
    """What came of it.

    Args:
        best: The feasible layouts with the least time (or dollars), refined ones among them, in order.
        curve: The best one for each number of devices.
        tried: How many choices were worked out.
        is_exact: Whether no layout was left whose bound is better than the first of the best; those whose stages are not
            even are left.
    """

    best: tuple[Candidate, ...]
    curve: tuple[Candidate, ...]
    tried: int
    is_exact: bool


def refined(
    question: Question,
    limits: Limits,
    findings: Findings,
    cluster: Cluster,
    *,
    time: Values,
    memory: Values,
    objective: Objective = Objective.TIME,
    keep: int = 24,
) -> Refined:
    """The best layouts of a search, with choices layer by layer where memory is short.

    Args:
        question: Of the search.
        limits: Of the search.
        findings: Of the search: ``tight`` are tried.
        cluster: To compile single layers for.
        time: Constants of the closed forms of time.
        memory: Those of memory.
        objective: Of the search.
        keep: How many of the best count: what cannot be among them is not tried.
    """

    def value(candidate: Candidate) -> float:
        if objective is Objective.TIME:
            return candidate.step_s
        if candidate.usd_per_step is not None:
            return candidate.usd_per_step
        return candidate.step_s * candidate.layout.devices / SECONDS_PER_HOUR

    shares = _Shares(question, cluster)
    plain = plain_layouts(
        question, [layout for _, layout in findings.tight[:MOST_REFINED]], time=time, memory=memory
    )
    best = [(value(found), found) for found in findings.best]
    tried, is_exact = 0, len(findings.tight) < findings.kept_tight
    left = np.inf
    for bound, layout in findings.tight:
        first = best[0][0] if best else np.inf
        worst = best[keep - 1][0] if len(best) >= keep else np.inf
        if bound >= min(worst, first * JUDGED_APART) or tried == MOST_REFINED:
            is_exact = bound >= first
            break
        fine = _refined(
            question, limits, plain[tried], shares.of, most=min(worst, first * JUDGED_APART) / bound
        )
        tried += 1
        if not _is_even(question, layout):
            left = min(left, bound)
        if fine is not None and fine.verdict is Verdict.FEASIBLE:
            insort(best, (value(fine), fine), key=itemgetter(0))
    curve = {found.layout.devices: found for found in findings.curve}
    for _, found in best:
        known = curve.get(found.layout.devices)
        if known is None or found.step_s < known.step_s:
            curve[found.layout.devices] = found
    return Refined(
        best=tuple(found for _, found in best),
        curve=tuple(found for _, found in sorted(curve.items())),
        tried=tried,
        is_exact=is_exact and not (best and left < best[0][0]),
    )


class _Shares:
    """Ways of layers, compiled once for layouts that treat a layer alike."""

    def __init__(self, question: Question, cluster: Cluster) -> None:
        self._question, self._cluster = question, cluster
        self._known: dict[tuple[object, ...], tuple[Share, ...]] = {}

    def of(self, layout: Layout, window: int | None) -> tuple[Share, ...]:
        """As ``SharesOf``."""
        key = (
            layout.tensor,
            layout.context,
            layout.expert,
            layout.sequence_parallel,
            window,
        )
        if key not in self._known:
            self._known[key] = shares_of_ways(self._question, layout, self._cluster, window)
        return self._known[key]


def refined_layout(
    question: Question,
    limits: Limits,
    layout: Layout,
    shares: SharesOf,
    *,
    time: Values,
    memory: Values,
) -> Candidate | None:
    """The layout with the least computed again that fits; None if nothing does, or stages are not even.

    Args:
        question: That it answers.
        limits: Head-room, and the others for its verdict.
        layout: That keeps everything, stages even.
        shares: The ways to treat a layer under a window, or under none.
        time: Constants of the closed forms of time.
        memory: Those of memory.
    """
    (plain,) = plain_layouts(question, [layout], time=time, memory=memory)
    return _refined(question, limits, plain, shares, most=np.inf)


def _refined(
    question: Question, limits: Limits, plain: Plain, shares: SharesOf, *, most: float
) -> Candidate | None:
    """As ``refined_layout``; None, too, where a step is sure to take ``most`` times that of the plain layout."""
    layout, layers = plain.layout, question.network.layers
    if not _is_even(question, layout):
        return None
    windows = {question.network.window_of(layer) for layer in range(layers)}
    of_window = {window: shares(layout, window) for window in windows}
    if not all(of_window.values()):
        return None
    known: dict[object, tuple[float, Chosen] | None] = {}
    ranks: list[_Rank] = []
    chosen: list[_Choice] = []
    for rank in _ranks(question, limits, plain, of_window):
        least = _of_rank(rank, known)
        if least is None:
            return None
        ranks.append(rank)
        chosen.append(least)
        slower = rank.plain_s + sum(least.seconds_of.values()) - plain.slowest_s
        if plain.step_s + plain.runs * slower * plain.late >= most * plain.step_s:
            return None
    return _candidate(question, limits, plain, ranks, chosen)


def _is_even(question: Question, layout: Layout) -> bool:
    """Whether every stage holds as many layers: which layers those are is plain then."""
    return question.network.layers % (layout.pipeline * layout.pieces) == 0 and not layout.first_layers


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rank:
    """One rank of the pipeline.

    Args:
        layers: By window, in order.
        plain_s: Of a microbatch, with nothing computed again.
        ways: By window: numbers, and what they take and keep.
        room_bytes: For activations, working memory left out.
        other_bytes: Logits.
        working_bytes: Needed besides where anything is computed again.
    """

    layers: Mapping[int | None, tuple[int, ...]]
    plain_s: float
    ways: Mapping[int | None, tuple[tuple[int, ...], tuple[Way, ...]]]
    room_bytes: float
    other_bytes: float
    working_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """Of a rank: seconds for one microbatch, bytes kept, the way of each layer and its seconds."""

    kept_bytes: float
    way_of: Mapping[int, int]
    seconds_of: Mapping[int, float]


def _ranks(
    question: Question, limits: Limits, plain: Plain, shares: Mapping[int | None, tuple[Share, ...]]
) -> Iterator[_Rank]:
    layout, layers = plain.layout, question.network.layers
    room = question.fabric.memory_bytes * (1 - limits.headroom)
    for_activations = (room - plain.overhead_bytes) / plain.fragmentation - plain.resident_bytes
    places = ranks_of_stages(layout.schedule, ranks=layout.pipeline, stages_per_rank=layout.pieces)
    count = layers // len(places)
    for rank in range(layout.pipeline):
        flight = _flight(plain, rank)
        by_window: dict[int | None, tuple[int, ...]] = {}
        for layer in range(layers):
            if places[layer // count] == rank:
                window = question.network.window_of(layer)
                by_window[window] = (*by_window.get(window, ()), layer)
        has_head = places[-1] == rank
        yield _Rank(
            layers=by_window,
            plain_s=layers / layout.pipeline * plain.layer_s + plain.head_s * has_head,
            ways={
                window: (
                    tuple(share.way for share in shares[window]),
                    tuple(_way(share, plain, flight) for share in shares[window]),
                )
                for window in by_window
            },
            room_bytes=for_activations,
            other_bytes=plain.logit_bytes * has_head,
            working_bytes=plain.working_bytes,
        )


def _way(share: Share, plain: Plain, flight: float) -> Way:
    saved = plain.kept_bytes - plain.border_bytes
    return Way(
        seconds=share.compute * plain.again_s + share.wait * plain.again_wait_s,
        kept_bytes=ceil(flight * (plain.border_bytes + saved * share.kept)),
    )


def _flight(plain: Plain, rank: int) -> float:
    """Microbatches that a rank keeps at once: with one stage a rank later ones begin their backward passes sooner."""
    layout = plain.layout
    if layout.schedule is StageSchedule.ONE_F_ONE_B and layout.pipeline > 1:
        return min(plain.in_flush, layout.pipeline - rank)
    return plain.first_kept


def _of_rank(rank: _Rank, known: dict[object, tuple[float, Chosen] | None]) -> _Choice | None:
    """The choice with the least time; ``known`` has those of ranks that are alike."""
    room = rank.room_bytes - rank.other_bytes
    everything = sum(len(rank.layers[window]) * _kept_if(ways, 0) for window, ways in rank.ways.items())
    if everything <= room:
        nothing = {layer: 0 for own in rank.layers.values() for layer in own}
        return _Choice(
            kept_bytes=everything + rank.other_bytes, way_of=nothing, seconds_of=dict.fromkeys(nothing, 0.0)
        )
    windows = list(rank.layers)
    groups = [Alike(count=len(rank.layers[window]), ways=rank.ways[window][1]) for window in windows]
    key = (tuple(groups), int(room - rank.working_bytes))
    if key not in known:
        known[key] = least_time(*key)
    found = known[key]
    if found is None:
        return None
    way_of: dict[int, int] = {}
    seconds_of: dict[int, float] = {}
    kept = 0
    for window, counts in zip(windows, found[1], strict=True):
        numbers, ways = rank.ways[window]
        # What keeps least stands first.
        order = sorted(range(len(ways)), key=lambda index: ways[index].kept_bytes)
        in_order = iter(rank.layers[window])
        for index in order:
            for _ in range(counts[index]):
                layer = next(in_order)
                way_of[layer], seconds_of[layer] = numbers[index], ways[index].seconds
                kept += ways[index].kept_bytes
    return _Choice(
        kept_bytes=kept + rank.working_bytes + rank.other_bytes, way_of=way_of, seconds_of=seconds_of
    )


def _kept_if(ways: tuple[tuple[int, ...], tuple[Way, ...]], number: int) -> int:
    return ways[1][ways[0].index(number)].kept_bytes


def _candidate(
    question: Question, limits: Limits, plain: Plain, ranks: Sequence[_Rank], chosen: Sequence[_Choice]
) -> Candidate:
    layout = plain.layout
    places = ranks_of_stages(layout.schedule, ranks=layout.pipeline, stages_per_rank=layout.pieces)
    added = [sum(choice.seconds_of.values()) for choice in chosen]
    slowest = max(rank.plain_s + more for rank, more in zip(ranks, added, strict=True))
    slower, mean = slowest - plain.slowest_s, sum(added) / len(added)
    longer = plain.runs * slower + plain.fill * mean
    parts = dict(plain.parts)
    parts["recompute_s"] += plain.runs * mean
    parts["bubble_s"] += plain.runs * (slower - mean) + plain.fill * mean
    parts["straggling_s"] += longer * (plain.late - 1)
    step_s = plain.step_s + longer * plain.late
    activations = max(choice.kept_bytes for choice in chosen)
    used = plain.resident_bytes + activations
    needed = used * plain.fragmentation + plain.overhead_bytes
    way_of = {layer: way for choice in chosen for layer, way in choice.way_of.items()}
    recompute = tuple(way_of[layer] for layer in range(question.network.layers))
    seconds_of = {layer: seconds for choice in chosen for layer, seconds in choice.seconds_of.items()}
    count = question.network.layers // len(places)
    hourly = limits.usd_per_device_hour
    usd = None if hourly is None else step_s * layout.devices * hourly / SECONDS_PER_HOUR
    room = question.fabric.memory_bytes * (1 - limits.headroom)
    return Candidate(
        # Beside others it is compared as the quarters that it is nearest to.
        layout=replace(layout, recompute=recompute, recompute_quarters=_quarters(recompute)),
        step_s=step_s,
        parts=parts,
        closed_form_bytes=needed,
        memory_bytes=needed,
        memory_parts={
            "state_bytes": plain.state_bytes,
            "gathered_bytes": plain.gathered_bytes,
            "posted_bytes": plain.posted_bytes,
            "activation_bytes": activations,
            "fragmentation_bytes": used * (plain.fragmentation - 1),
            "overhead_bytes": plain.overhead_bytes,
        },
        usd_per_step=usd,
        verdict=_verdict(limits, step_s, usd),
        shortfall_bytes=max(0.0, needed - room),
        stage_again_s=tuple(
            sum(seconds_of[layer] for layer in range(stage * count, (stage + 1) * count))
            for stage in range(len(places))
        ),
    )


def _verdict(limits: Limits, step_s: float, usd: float | None) -> Verdict:
    steps = limits.steps or 1
    if limits.deadline_s is not None and step_s * steps > limits.deadline_s:
        return Verdict.DEADLINE
    if limits.budget_usd is not None and usd is not None and usd * steps > limits.budget_usd:
        return Verdict.BUDGET
    return Verdict.FEASIBLE


def _quarters(recompute: Sequence[int]) -> int:
    return round(4 * sum(way == ALL for way in recompute) / len(recompute))
