"""Pipelines over two kinds of devices, whose stages hold as many layers as their devices are fast.

The pipeline is the outermost axis, so that its first ranks stand on the first pool and its last ones on the second. What
a rank takes is its layers at the rate of its own devices; the slowest rank decides.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from trimtab.cost.closed_form import (
    Cases,
    Floats,
    LayerTimes,
    PeakMemory,
    StepTimes,
    Values,
    layer_times,
    peak_memory,
    step_times,
)
from trimtab.cost.search.fabrics import Pool
from trimtab.cost.search.space import Layout, Question, cases_of_layouts, layouts
from trimtab.plan.pipelines import StageSchedule, ranks_of_stages

_SCHEDULES = tuple(StageSchedule)
_IS_V = tuple(schedule in (StageSchedule.ZBV, StageSchedule.DUALPIPEV) for schedule in _SCHEDULES)
_IS_1F1B = tuple(schedule is StageSchedule.ONE_F_ONE_B for schedule in _SCHEDULES)

Columns = Mapping[str, np.ndarray]


def uneven_layouts(question: Question, *, time: Values, memory: Values, headroom: float) -> Iterator[Columns]:
    """Layouts whose stages stand on devices of one kind each, with the best cut of layers between the two pools.

    Of every number of layers that the first pool may hold, the one with the shortest step among those that fit; the
    shortest of all where none fits.

    Args:
        question: With two pools.
        time: Constants of the closed forms of time.
        memory: Those of memory.
        headroom: Share of a device's memory that stays free.
    """
    if not question.pools:
        return
    for columns in layouts(question):
        group = columns["devices"] // columns["pipeline"]
        border = question.pools[1].first
        is_pure = (columns["devices"] > border) & (columns["pipeline"] > 1) & (border % group == 0)
        if not is_pure.any():
            continue
        chosen = {name: column[is_pure] for name, column in columns.items()}
        first, head = _best_cut(question, chosen, time, memory, headroom)
        is_cut = first > 0
        if is_cut.any():
            cut = {**chosen, "first_layers": first, "head_layers": head}
            yield {name: column[is_cut] for name, column in cut.items()}


def uneven_times(question: Question, columns: Columns, time: Values) -> StepTimes:
    """Of layouts with a cut: parts of the rank that takes longest, and its waiting for the others."""
    parts = _halves(question, columns, time)
    return _step(parts, _counts(question, parts, columns["first_layers"], columns["head_layers"]), time)


def uneven_figures(
    question: Question, columns: Columns, *, time: Values, memory: Values, headroom: float
) -> tuple[StepTimes, PeakMemory, Floats]:
    """Of layouts with a cut.

    Returns: Parts of the rank that takes longest, and its waiting for the others; memory of the pool whose devices have
        least left; and what one of its devices has, head-room left out.
    """
    parts = _halves(question, columns, time)
    cut = _counts(question, parts, columns["first_layers"], columns["head_layers"])
    one, two = (
        peak_memory(_holding(half, fullest, columns), memory)
        for half, fullest in zip(parts, cut.fullest, strict=True)
    )
    rooms = _rooms(question, headroom)
    is_first = one.largest_bytes - rooms[0] >= two.largest_bytes - rooms[1]
    held = PeakMemory(
        **{
            field.name: np.where(is_first, getattr(one, field.name), getattr(two, field.name))
            for field in fields(PeakMemory)
        }
    )
    return _step(parts, cut, time), held, np.where(is_first, *rooms)


def _rooms(question: Question, headroom: float) -> tuple[float, float]:
    one, two = (pool.fabric.memory_bytes * (1 - headroom) for pool in question.pools)
    return one, two


def rank_layers(question: Question, layout: Layout) -> tuple[int, ...]:
    """Layers of every rank of a pipeline with a cut, as even in each pool as they can be but for the head's."""
    first_ranks = question.pools[1].first * layout.pipeline // layout.devices
    sizes = (first_ranks, layout.pipeline - first_ranks)
    totals = (layout.first_layers, question.network.layers - layout.first_layers)
    head_pool = 0 if _IS_V[_SCHEDULES.index(layout.schedule)] else 1
    found: list[int] = []
    for pool, (ranks, total) in enumerate(zip(sizes, totals, strict=True)):
        if pool == head_pool:
            others = _spread(total - layout.head_layers, ranks - 1)
            found += [layout.head_layers, *others] if head_pool == 0 else [*others, layout.head_layers]
        else:
            found += _spread(total, ranks)
    return tuple(found)


def stage_layers(question: Question, layout: Layout) -> tuple[int, ...]:
    """Layers of every stage of a pipeline with a cut; a rank's are as even as they can be."""
    places = ranks_of_stages(layout.schedule, ranks=layout.pipeline, stages_per_rank=layout.pieces)
    left = [iter(_spread(count, layout.pieces)) for count in rank_layers(question, layout)]
    return tuple(next(left[place]) for place in places)


def as_if_all(question: Question, pool: Pool) -> Question:
    """The same on as many devices of one kind."""
    many = replace(pool.fabric, num_devices=question.fabric.num_devices)
    return replace(question, fabric=many)


def pool_of_rank(question: Question, layout: Layout, rank: int) -> int:
    """The pool that a rank of the pipeline stands on."""
    return int(rank >= question.pools[1].first * layout.pipeline // layout.devices)


def _spread(total: int, ranks: int) -> list[int]:
    return [total // ranks + (rank < total % ranks) for rank in range(ranks)] if ranks else []


@dataclass(frozen=True, kw_only=True, slots=True)
class _Half:
    """The part of pipelines that stands on one pool.

    Args:
        cases: As if all devices were of this kind.
        layer: Seconds of a layer on it.
        first, ranks: Of the pipeline.
        has_head: Whether one of them has the head.
    """

    cases: Cases
    layer: LayerTimes
    first: Floats
    ranks: Floats
    has_head: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
    """How layers are cut between two pools.

    Args:
        fullest: Layers of the fullest rank of each.
        busy_s: Of the rank of each that takes longest, for one microbatch.
        head_layers: Of the rank with the head.
        sum_s: Of all ranks together.
    """

    fullest: tuple[Floats, Floats]
    busy_s: tuple[Floats, Floats]
    head_layers: Floats
    sum_s: Floats


def _halves(question: Question, columns: Columns, time: Values) -> tuple[_Half, _Half]:
    border = question.pools[1].first
    group = columns["devices"] // columns["pipeline"]
    before = border // group
    is_v = np.asarray(_IS_V)[columns["schedule"]]
    found = []
    for number, pool in enumerate(question.pools):
        cases = cases_of_layouts(as_if_all(question, pool), columns)
        found.append(
            _Half(
                cases=cases,
                layer=layer_times(cases, time),
                first=before * float(number),
                ranks=np.asarray(columns["pipeline"] - before if number else before, dtype=np.float64),
                has_head=is_v if number == 0 else ~is_v,
            )
        )
    return found[0], found[1]


def _best_cut(
    question: Question, columns: Columns, time: Values, memory: Values, headroom: float
) -> tuple[np.ndarray, np.ndarray]:
    """Layers of the first pool and of the rank with the head; 0 where stages cannot all have a layer."""
    parts = _halves(question, columns, time)
    pieces = columns["pieces"]
    layers = question.network.layers
    most = [
        _most_layers(half, columns, memory, room, layers)
        for half, room in zip(parts, _rooms(question, headroom), strict=True)
    ]
    # Sums of gradients, gathers and the update grow evenly with layers.
    beside = [_beside(half, columns, time) for half in parts]
    runs, fill = _weights(parts[0].cases)
    best = np.full(len(pieces), np.inf)
    any_best = best.copy()
    first, head, any_first, any_head = (np.zeros(len(pieces), dtype=np.int64) for _ in range(4))
    least = [half.ranks * pieces for half in parts]
    for count in range(1, layers):
        is_whole = (count >= least[0]) & (layers - count >= least[1])
        if not is_whole.any():
            continue
        for head_layers in _head_layers(question, parts, count):
            cut = _counts(question, parts, np.full(len(pieces), count), head_layers)
            slowest = np.maximum(*cut.busy_s)
            extra = np.maximum(
                *(base + each * fullest for (base, each), fullest in zip(beside, cut.fullest, strict=True))
            )
            seconds = np.where(is_whole, runs * slowest + fill * (cut.sum_s - slowest) + extra, np.inf)
            is_better = seconds < any_best
            any_best, any_first = (
                np.where(is_better, seconds, any_best),
                np.where(is_better, count, any_first),
            )
            any_head = np.where(is_better, head_layers, any_head)
            has_room = (cut.fullest[0] <= most[0]) & (cut.fullest[1] <= most[1])
            is_better = has_room & (seconds < best)
            best, first = np.where(is_better, seconds, best), np.where(is_better, count, first)
            head = np.where(is_better, head_layers, head)
    fits = np.isfinite(best)
    return (
        np.where(fits, first, any_first).astype(np.int64),
        np.where(fits, head, any_head).astype(np.int64),
    )


def _head_layers(question: Question, parts: tuple[_Half, _Half], count: int) -> Iterator[Floats]:
    """What the rank with the head may hold, if the first pool holds so many layers.

    As many as make its pool's slowest rank fastest, and one more or less; as many as leave it no slower than the other
    pool; and as many as the others of its pool, whose sums of gradients are then shortest. A step is linear between.
    """
    has_first = parts[0].has_head

    def of_pool(one: Floats, two: Floats) -> Floats:
        found: Floats = np.where(has_first, one, two)
        return found

    held = of_pool(np.asarray(float(count)), np.asarray(float(question.network.layers - count)))
    ranks = of_pool(parts[0].ranks, parts[1].ranks)
    one = of_pool(parts[0].layer.layer_s, parts[1].layer.layer_s)
    head = of_pool(parts[0].layer.head_s, parts[1].layer.head_s)
    beyond = of_pool(
        np.ceil((question.network.layers - count) / parts[1].ranks) * parts[1].layer.layer_s,
        np.ceil(count / parts[0].ranks) * parts[0].layer.layer_s,
    )
    pieces = parts[0].cases.virtual
    most = np.maximum(held - (ranks - 1) * pieces, pieces)
    level = np.floor((held - (ranks - 1) * head / one) / ranks)
    for wanted in (level - 1, level, level + 1, np.floor((beyond - head) / one), np.ceil(held / ranks)):
        yield np.where(ranks == 1, held, np.clip(wanted, pieces, most))


def _counts(
    question: Question, parts: tuple[_Half, _Half], first_layers: np.ndarray, head_layers: np.ndarray
) -> _Cut:
    """Of so many layers on the first pool, and so many on the rank with the head."""
    fullest, busy, total = [], [], np.zeros(())
    own = np.asarray(head_layers, dtype=np.float64)
    for number, half in enumerate(parts):
        held = np.asarray(
            first_layers if number == 0 else question.network.layers - first_layers, dtype=np.float64
        )
        one, head = half.layer.layer_s, half.layer.head_s
        even = np.ceil(held / half.ranks)
        others = np.ceil((held - own) / np.maximum(half.ranks - 1, 1)) * (half.ranks > 1)
        fullest.append(np.where(half.has_head, np.maximum(own, others), even))
        busy.append(np.where(half.has_head, np.maximum(own * one + head, others * one), even * one))
        total = total + held * one + np.where(half.has_head, head, 0.0)
    return _Cut(fullest=(fullest[0], fullest[1]), busy_s=(busy[0], busy[1]), head_layers=own, sum_s=total)


def _weights(cases: Cases) -> tuple[Floats, Floats]:
    """How often the slowest rank, and the sum of the others, count in a step."""
    return cases.microbatches, cases.flushes * cases.fill / cases.virtual


def _holding(half: _Half, layers: Floats, columns: Columns) -> Cases:
    """Cases each of whose ranks holds so many layers, and as many microbatches as the first rank of this half."""
    cases, pieces = half.cases, half.cases.virtual
    whole = np.ceil(layers / pieces) * pieces
    # With one stage a rank, later ranks begin their backward passes sooner: rank r of p keeps p - r microbatches.
    kept = np.minimum(cases.microbatches / cases.flushes, cases.pipeline - half.first)
    is_late = np.asarray(_IS_1F1B)[columns["schedule"]]
    return replace(
        cases,
        layers=whole * cases.pipeline,
        batch=np.where(is_late, kept * cases.flushes * cases.data * cases.microbatch, cases.batch),
    )


def _most_layers(half: _Half, columns: Columns, memory: Values, room_bytes: float, layers: int) -> Floats:
    """That fit on a rank, by bisection; memory grows with layers."""
    low = np.zeros(len(columns["devices"]))
    high = np.full(len(low), layers + 1.0)
    while np.any(high - low > 1):
        middle = np.floor((low + high) / 2)
        fits = peak_memory(_holding(half, middle, columns), memory).largest_bytes <= room_bytes
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low


def _beside(half: _Half, columns: Columns, time: Values) -> tuple[Floats, Floats]:
    """Seconds beside the passes: of no layer, and of each."""
    one, two = (
        _beside_s(
            step_times(replace(half.cases, layers=np.asarray(count) * half.cases.pipeline), half.layer, time)
        )
        for count in (1.0, 2.0)
    )
    return 2 * one - two, two - one


def _beside_s(times: StepTimes) -> Floats:
    return times.gradients_s + times.stored_s + times.optimizer_s


_BESIDE = ("gradients_s", "stored_s", "optimizer_s")


def _step(parts: tuple[_Half, _Half], cut: _Cut, time: Values) -> StepTimes:
    cases = parts[0].cases
    runs, fill = _weights(cases)
    is_first = cut.busy_s[0] >= cut.busy_s[1]
    slowest = np.maximum(*cut.busy_s)

    def of_slowest(name: str) -> Floats:
        one, two = (getattr(half.layer, name) for half in parts)
        found: Floats = np.where(is_first, one, two)
        return found

    has_head = np.where(is_first, parts[0].has_head, parts[1].has_head)
    head_s = of_slowest("head_s")
    with_head = np.where(has_head, cut.head_layers * of_slowest("layer_s") + head_s, 0.0)
    is_head = has_head & (with_head >= slowest * (1 - 1e-12))
    held = np.where(is_head, cut.head_layers, np.where(is_first, *cut.fullest))
    # A fuller rank beside that of the head is the slowest where the head is light.
    beside_head = has_head & ~is_head
    held = np.where(beside_head, np.rint(slowest / of_slowest("layer_s")), held)
    hop_s = np.maximum(*(half.layer.hop_s for half in parts))
    hops = 2 * hop_s * cases.virtual
    beside = [
        step_times(replace(half.cases, layers=fullest * half.cases.pipeline), half.layer, time)
        for half, fullest in zip(parts, cut.fullest, strict=True)
    ]
    waits = [_beside_s(times) for times in beside]
    found = {
        "compute_s": runs * (held * (of_slowest("forward_s") + of_slowest("backward_s")) + is_head * head_s),
        "recompute_s": runs * held * of_slowest("again_s"),
        "collectives_s": runs * held * of_slowest("wait_s"),
        "hops_s": runs * hops,
        "bubble_s": fill * (cut.sum_s - slowest + (cases.pipeline - 1) * (hops + time["microbatch_s"])),
        **{
            name: np.where(waits[0] >= waits[1], *(getattr(times, name) for times in beside))
            for name in _BESIDE
        },
        "fixed_s": runs * time["microbatch_s"] + time["step_s"],
    }
    total = sum(found.values(), np.zeros(()))
    return StepTimes(straggling_s=total * time["straggling"] * np.log(cases.devices), **found)
