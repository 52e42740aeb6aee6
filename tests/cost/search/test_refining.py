"""What is computed again, layer by layer: against every assignment, against quarters, and compiled."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from trimtab.catalog import cluster
from trimtab.cost.block_bytes import block_bytes
from trimtab.cost.closed_form import Values, layer_bytes, layer_times, logit_bytes, peak_memory, step_times
from trimtab.cost.counts import counts_of
from trimtab.cost.search import (
    Candidate,
    Layout,
    Limits,
    Question,
    Verdict,
    find,
    formulas_of,
    judged_step_s,
    plan_of,
    price_of_layout,
    priced_cases,
    refined,
)
from trimtab.cost.search.refining import refined_layout
from trimtab.cost.search.ways import Share, shares_of_ways
from trimtab.cost.search.words import ALL

QuestionMaker = Callable[..., Question]
Constants = tuple[Values, Values]

SHARES = (
    Share(way=0, kept=1.0, compute=0.0, wait=0.0),
    Share(way=2, kept=0.55, compute=0.3, wait=0.4),
    Share(way=ALL, kept=0.0, compute=1.0, wait=1.0),
)


def tight(question: Question, layout: Layout, values: Constants, part: float) -> Question:
    """Devices with so much memory that a part of what recompute saves has to be saved."""
    needs = [
        price_of_layout(
            question,
            Limits(headroom=0.0),
            replace(layout, recompute_quarters=quarters),
            time=values[0],
            memory=values[1],
        ).memory_bytes
        for quarters in (0, 4)
    ]
    room = needs[1] + (needs[0] - needs[1]) * (1 - part)
    return replace(question, fabric=replace(question.fabric, memory_bytes=room))


def refine(question: Question, layout: Layout, values: Constants) -> Candidate | None:
    """With the shares above for every layer."""
    return refined_layout(
        question, Limits(headroom=0.0), layout, lambda *_: SHARES, time=values[0], memory=values[1]
    )


def one(figure: object) -> float:
    """Of one case."""
    return float(np.ravel(np.asarray(figure))[0])


def least_of_all(question: Question, layout: Layout, values: Constants) -> float:
    """Step time of the best of all assignments of ways to layers, written down once more."""
    time, memory = values
    cases = priced_cases(question, layout)
    layer, times = layer_times(cases, time), step_times(cases, layer_times(cases, time), time)
    whole = layer_times(priced_cases(question, replace(layout, recompute_quarters=4)), time)
    held, size = peak_memory(cases, memory), layer_bytes(cases, memory)
    layers, ranks = question.network.layers, layout.pipeline
    each = layers // ranks
    runs = one(cases.microbatches)
    best = float("inf")
    for ways in product(SHARES, repeat=layers):
        seconds = [
            share.compute * one(whole.again_s) + share.wait * one(whole.again_wait_s) for share in ways
        ]
        added = [sum(seconds[rank * each : (rank + 1) * each]) for rank in range(ranks)]
        fits = True
        for rank in range(ranks):
            own = ways[rank * each : (rank + 1) * each]
            flight = min(runs, ranks - rank) if ranks > 1 else 1
            kept = flight * sum(
                one(size.border_bytes) + (one(size.kept_bytes) - one(size.border_bytes)) * share.kept
                for share in own
            )
            kept += one(size.working_bytes) if any(share.way for share in own) else 0
            kept += one(logit_bytes(cases, memory)) if rank == ranks - 1 else 0
            used = (one(held.state_bytes + held.gathered_bytes + held.posted_bytes) + kept) * one(
                held.fragmentation
            )
            fits &= used + one(held.overhead_bytes) <= question.fabric.memory_bytes
        if fits:
            head = [one(layer.head_s) * (rank == ranks - 1) for rank in range(ranks)]
            busy = [each * one(layer.layer_s) + head[rank] for rank in range(ranks)]
            slower = max(old + more for old, more in zip(busy, added, strict=True)) - max(busy)
            fill = (ranks - 1) * sum(added) / ranks
            late = 1 + one(time["straggling"]) * np.log(layout.devices)
            best = min(best, one(times.total_s) + (runs * slower + fill) * late)
    return best


@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("part", [0.1, 0.35, 0.6, 0.9])
def test_no_assignment_is_better(
    question: QuestionMaker, values: Constants, pipeline: int, part: float
) -> None:
    """Every way for each of six layers, on one rank or on two of a pipeline."""
    asked = question(network="llama2-7b", batch=8, devices=(4,))
    asked = replace(asked, network=replace(asked.network, layers=6))
    layout = Layout(devices=4, tensor=2, pipeline=pipeline)
    asked = tight(asked, layout, values, part)
    found = refine(asked, layout, values)
    assert found is not None
    assert found.step_s == pytest.approx(least_of_all(asked, layout, values), rel=1e-9)
    assert found.verdict is Verdict.FEASIBLE
    assert found.memory_bytes <= asked.fabric.memory_bytes
    assert sum(found.parts.values()) == pytest.approx(found.step_s)
    assert sum(found.memory_parts.values()) == pytest.approx(found.memory_bytes)
    judged = judged_step_s(asked, found.layout, values[0], found.stage_again_s)
    assert judged == pytest.approx(found.step_s, rel=0.03)


def test_all_of_everything_is_four_quarters(question: QuestionMaker, values: Constants) -> None:
    asked = question(batch=64, devices=(8,))
    layout = Layout(devices=8, tensor=2, microbatch=2)
    asked = tight(asked, layout, values, 1.0)
    asked = replace(asked, fabric=replace(asked.fabric, memory_bytes=asked.fabric.memory_bytes * (1 + 1e-9)))
    found = refine(asked, layout, values)
    wanted = price_of_layout(
        asked, Limits(headroom=0.0), replace(layout, recompute_quarters=4), time=values[0], memory=values[1]
    )
    assert found is not None
    assert set(found.layout.recompute) == {ALL}
    assert found.step_s == pytest.approx(wanted.step_s, rel=1e-9)
    assert found.memory_bytes == pytest.approx(wanted.memory_bytes, rel=1e-6)


def test_what_cannot_fit_and_what_is_not_even_have_no_choice(
    question: QuestionMaker, values: Constants
) -> None:
    asked = question(batch=64, devices=(8,))
    layout = Layout(devices=8, tensor=2)
    assert refine(tight(asked, layout, values, 1.1), layout, values) is None
    uneven = replace(asked, network=replace(asked.network, layers=31))
    assert refine(uneven, Layout(devices=8, pipeline=2), values) is None


def test_compiled_ways_lie_between_nothing_and_all(question: QuestionMaker) -> None:
    """More is computed again, less is kept; the whole layer is the whole."""
    layout = Layout(devices=2, tensor=2, sequence_parallel=True)
    shares = {share.way: share for share in shares_of_ways(question(), layout, cluster("64xA100"), None)}
    assert (shares[0].kept, shares[0].compute, shares[0].wait) == (1, 0, 0)
    assert (shares[ALL].kept, shares[ALL].compute) == (0, 1)
    assert 1 > shares[1].kept > shares[3].kept > 0
    assert 1 > shares[2].kept > shares[3].kept
    assert 0 < shares[1].compute < shares[2].compute < shares[3].compute < 1


def test_layers_with_windows_come_first(question: QuestionMaker, values: Constants) -> None:
    """Their attention sees less, and keeps as much: a byte of theirs costs less time."""
    asked = question(sequence=32768, batch=8, devices=(8,))
    # Short windows: little of a layer's time is left in attention.
    windowed = replace(asked.network, window=1024, full_layers=16, context=32768)
    asked = replace(asked, network=windowed)
    layout = Layout(devices=8, tensor=8)
    asked = tight(asked, layout, values, 0.6)
    of: Mapping[int | None, tuple[Share, ...]] = {
        window: shares_of_ways(asked, layout, cluster("64xA100"), window) for window in (None, 1024)
    }
    found = refined_layout(
        asked, Limits(headroom=0.0), layout, lambda _, window: of[window], time=values[0], memory=values[1]
    )
    assert found is not None
    again = [layer for layer, way in enumerate(found.layout.recompute) if way == ALL]
    assert again
    assert min(again) >= 16


def test_formulas_say_it_and_compile(question: QuestionMaker) -> None:
    """Layers keep what their way says: the first two norms alone, the next all, the others everything."""
    asked = question(batch=8, devices=(8,))
    layout = Layout(devices=8, tensor=2, recompute=(1, 1, ALL, ALL, *(0,) * 27, 2))
    text = formulas_of(asked, layout)
    assert "RECOMPUTE activations WHERE layer < 2 AND kind = 'norm'" in text
    assert "RECOMPUTE activations WHERE layer BETWEEN 2 AND 3  " in text
    assert "RECOMPUTE activations WHERE layer = 31 AND kind = 'attention'" in text
    plan = plan_of(asked, layout, cluster("64xA100"), shares=layout.data)
    holdings = counts_of(plan).holdings
    kept = {
        block.layers: block_bytes(plan, block, holdings.parameters[block.name]).kept
        for block in plan.blocks
        if block.layers
    }
    assert kept.keys() == {(0, 1), (2, 3), tuple(range(4, 31)), (31,)}
    assert kept[2, 3] < kept[31,] < kept[tuple(range(4, 31))]
    assert kept[2, 3] < kept[0, 1] < kept[tuple(range(4, 31))]


def test_a_search_takes_less_time_than_with_quarters(question: QuestionMaker, values: Constants) -> None:
    """Long samples of 7B on two cards: the best of all layouts, every layer as fine as the language says it."""
    asked = question(devices=(2,), batch=4, sequence=16384)
    asked = replace(
        asked,
        network=replace(asked.network, context=16384),
        fabric=replace(asked.fabric, memory_bytes=1.7 * asked.fabric.memory_bytes),
    )
    findings = find(asked, Limits(), time=values[0], memory=values[1], keep=1000)
    found = refined(asked, Limits(), findings, cluster("64xA100"), time=values[0], memory=values[1])
    assert found.is_exact
    assert 0 < findings.best[0].layout.recompute_quarters < 4
    assert found.best[0].step_s < 0.98 * findings.best[0].step_s
    assert found.best[0].layout.recompute
    assert [one.step_s for one in found.best] == sorted(one.step_s for one in found.best)
    assert found.curve[0] == found.best[0]
    plan_of(asked, found.best[0].layout, cluster("64xA100"), shares=found.best[0].layout.data)


def test_stages_that_are_not_even_are_left_and_said_to_be(question: QuestionMaker, values: Constants) -> None:
    """What would be faster by its bound, and has no choice worked out, is not called excluded."""
    asked = question(network="gpt2-124m", sequence=1024, batch=16, devices=(8,))
    findings = find(asked, Limits(), time=values[0], memory=values[1])
    best_s = findings.best[0].step_s
    for pipeline, bound, is_exact in (
        (8, 0.9 * best_s, False),
        (4, 0.9 * best_s, True),
        (8, 1.01 * best_s, True),
    ):
        left = replace(findings, tight=((bound, Layout(devices=8, pipeline=pipeline)),))
        found = refined(asked, Limits(), left, cluster("64xA100"), time=values[0], memory=values[1])
        assert found.is_exact is is_exact, pipeline


def test_nothing_is_refined_where_memory_is_plenty(question: QuestionMaker, values: Constants) -> None:
    asked = question(network="gpt2-124m", sequence=1024, batch=16, devices=(2,))
    findings = find(asked, Limits(), time=values[0], memory=values[1])
    found = refined(asked, Limits(), findings, cluster("64xA100"), time=values[0], memory=values[1])
    assert (found.tried, found.is_exact, found.best) == (0, True, findings.best)
