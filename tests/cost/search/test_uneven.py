"""Pipelines over two kinds of devices: the cut against hand arithmetic, against every cut, and against ``explain``."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from trimtab.catalog import Cluster, Level, Link, Network, Node, accelerator, cluster, network
from trimtab.cost.closed_form import MEMORY_CONSTANTS, TIME_CONSTANTS, Values, expected
from trimtab.cost.estimates import estimate
from trimtab.cost.search import (
    Layout,
    Limits,
    Mixture,
    Objective,
    Pool,
    Question,
    Verdict,
    fabric_of,
    find,
    formulas_of,
    judged_step_s,
    plan_of,
    pools_of,
    price_of_layout,
    strong_and_weak,
)
from trimtab.cost.search.pricing import price
from trimtab.cost.search.space import columns_of, layouts
from trimtab.cost.search.uneven import rank_layers, stage_layers
from trimtab.plan.pipelines import StageSchedule

Constants = tuple[Values, Values]

MIXED = "64xA100+64xH100"


def mixed_question(where: Cluster, net: Network, **changes: object) -> Question:
    """On all devices of a cluster of two kinds."""
    asked = Question(
        network=net,
        sequence=1024,
        batch=16,
        fabric=fabric_of(where, "bf16"),
        devices=(where.num_devices,),
        compute="bf16",
        shares=None,
        pools=pools_of(where, "bf16"),
    )
    return replace(asked, **changes)  # type: ignore[arg-type]  # fields by name


def pair_of(
    weak_rate: float, strong_rate: float, *, each: int = 1, weak_memory_bytes: int = 80 << 30
) -> Cluster:
    """Two nodes whose devices differ in their rate alone, and in memory if asked."""
    known = accelerator("A100-SXM-80GB")
    kinds = [
        replace(known, name=name, achievable_bf16_flops_per_s=rate, memory_bytes=size)
        for name, rate, size in (("weak", weak_rate, weak_memory_bytes), ("strong", strong_rate, 80 << 30))
    ]
    return Cluster(
        name="pair",
        nodes=tuple(Node(accelerator=kind, num_devices=each) for kind in kinds),
        links=tuple(Link(level=level, bytes_per_s=3e11, latency_s=0, source="test") for level in Level),
        source="test",
    )


def bare() -> Values:
    """Constants with nothing but products in time: no launches, waits, passes over memory, hosts or stragglers."""
    nothing = {
        "kernel_s": 0.0, "collective_s": 0.0, "microbatch_s": 0.0, "step_s": 0.0, "straggling": 0.0,
        "elementwise_passes": 0.0, "hop_s": 0.0, "hop_exposed": 0.0, "optimizer_passes": 0.0,
        "head_passes": 0.0, "odd_width": 0.0, "wave_power": 0.0, "attention_share": 1e9,
    }  # fmt: skip
    return {**expected(TIME_CONSTANTS), **{name: np.asarray(value) for name, value in nothing.items()}}


TINY_HEAD = replace(network("llama2-7b"), layers=32, vocab=64)


def test_three_to_one_by_hand() -> None:
    """A card three times as fast gets three layers of four, and both are done at once.

    32 layers as 8 and 24: with 16 microbatches of t a rank and one more to fill, 17 t, where t is 24 layers of the fast
    card. The fast card alone takes 16 times 32 layers: 512 / 408 = 1.25 times as long, where the rates allow 4 / 3.
    """
    where = pair_of(1e14, 3e14)
    asked = mixed_question(where, TINY_HEAD)
    layout = Layout(devices=2, pipeline=2, first_layers=8, head_layers=24)
    time, memory = bare(), expected(MEMORY_CONSTANTS)
    found = price_of_layout(asked, Limits(), layout, time=time, memory=memory)
    strong, weak = strong_and_weak(asked.pools)
    alone = replace(asked, fabric=strong.fabric, devices=(1,), pools=())
    on_one = price_of_layout(alone, Limits(), Layout(devices=1), time=time, memory=memory)
    assert on_one.step_s / found.step_s == pytest.approx(512 / 408, rel=1e-3)
    assert judged_step_s(asked, layout, time) == pytest.approx(found.step_s, rel=1e-3)
    mixture = Mixture(
        strong=strong,
        weak=weak,
        together_s=found.step_s,
        alone_s=on_one.step_s,
        together_usd=None,
        alone_usd=None,
    )
    assert mixture.ideal_ratio == pytest.approx(4 / 3)
    assert mixture.efficiency == pytest.approx(16 / 17, rel=1e-3)
    assert sum(found.parts.values()) == pytest.approx(found.step_s)


def test_the_search_finds_three_to_one() -> None:
    asked = mixed_question(pair_of(1e14, 3e14), TINY_HEAD)
    found = find(asked, Limits(headroom=-9.0), time=bare(), memory=expected(MEMORY_CONSTANTS), keep=100)
    cuts = {
        one.layout.first_layers
        for one in found.best
        if one.layout.schedule is StageSchedule.ONE_F_ONE_B and one.layout.first_layers
    }
    assert cuts == {8}


def all_cuts(question: Question) -> Iterator[dict[str, np.ndarray]]:
    """Every layout on pure stages, with every cut and every number of layers beside the head."""
    border, layers = question.pools[1].first, question.network.layers
    is_v = np.asarray([found in (StageSchedule.ZBV, StageSchedule.DUALPIPEV) for found in StageSchedule])
    for columns in layouts(question):
        group = columns["devices"] // columns["pipeline"]
        is_pure = (columns["pipeline"] > 1) & (border % group == 0)
        chosen = {name: column[is_pure] for name, column in columns.items()}
        ranks = (border // group[is_pure], (chosen["pipeline"] - border // group[is_pure]))
        for first, head in product(range(1, layers), range(1, layers)):
            has_first = is_v[chosen["schedule"]]
            own = np.where(has_first, first, layers - first)
            others = np.where(has_first, *ranks) - 1
            is_full = (first >= ranks[0] * chosen["pieces"]) & (layers - first >= ranks[1] * chosen["pieces"])
            fits = (head >= chosen["pieces"]) & (head <= own - others * chosen["pieces"])
            good = is_full & np.where(others == 0, head == own, fits)
            cut = {name: column[good] for name, column in chosen.items()}
            if good.any():
                every = np.ones(int(good.sum()), dtype=np.int64)
                yield {**cut, "first_layers": first * every, "head_layers": head * every}


@pytest.mark.parametrize(
    ("cards", "weak_gib"),
    [((1e14, 2.2e14), 80), ((1e14, 2.2e14), 5), ((2.2e14, 1e14), 80)],
    ids=["plenty", "little memory", "strong ones first"],
)
def test_no_cut_is_better(values: Constants, cards: tuple[float, float], weak_gib: int) -> None:
    """Of every layout the best cut of all; where memory forbids some, of those that fit."""
    where = pair_of(*cards, each=2, weak_memory_bytes=weak_gib << 30)
    net = replace(network("llama2-7b"), layers=7, embed=2048, heads=2, kv_heads=1, head_size=128, mlp=4096)
    asked = mixed_question(where, net, batch=4)
    found = find(asked, Limits(), time=values[0], memory=values[1], keep=10**6)
    best: dict[tuple[int, ...], float] = {}
    num_priced = num_fitting = 0
    for columns in all_cuts(asked):
        priced = price(asked, Limits(), columns, time=values[0], memory=values[1])
        fits = priced.verdicts == Verdict.FEASIBLE
        num_priced, num_fitting = num_priced + len(fits), num_fitting + int(fits.sum())
        names = sorted(name for name in columns if not name.endswith("_layers"))
        rows = np.stack([columns[name][fits] for name in names], axis=1).tolist()
        for row, seconds in zip(rows, priced.step_s[fits].tolist(), strict=True):
            best[tuple(row)] = min(seconds, best.get(tuple(row), np.inf))
    uneven = {
        tuple(int(columns_of(one.layout)[name][0]) for name in names): one.step_s
        for one in found.best
        if one.layout.first_layers
    }
    assert len(uneven) > 10
    assert num_fitting < num_priced or weak_gib == 80
    assert uneven == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    "schedule", [StageSchedule.ONE_F_ONE_B, StageSchedule.ZBV, StageSchedule.INTERLEAVED_1F1B]
)
def test_formulas_say_the_cut_and_compile(schedule: StageSchedule) -> None:
    """Every layer stands on the stage that the search gave it, and on the kind of card that it was priced on."""
    where = cluster(MIXED)
    asked = mixed_question(where, network("llama2-7b"), batch=256, sequence=4096)
    layout = Layout(
        devices=128, pipeline=4, schedule=schedule, pieces=1 if schedule is StageSchedule.ONE_F_ONE_B else 2,
        store=1, first_layers=9, head_layers=6 if schedule is StageSchedule.ZBV else 11,
    )  # fmt: skip
    plan = plan_of(asked, layout, where, shares=layout.data)
    wanted = stage_layers(asked, layout)
    assert sum(wanted) == 32
    assert [plan.pipeline.stage_of_layer.count(stage) for stage in range(len(wanted))] == list(wanted)
    by_rank = [0] * 4
    for stage, rank in enumerate(plan.pipeline.rank_of_stage):
        by_rank[rank] += wanted[stage]
    assert tuple(by_rank) == rank_layers(asked, layout)
    assert sum(by_rank[:2]) == 9
    assert "on A100-SXM-80GB" in formulas_of(asked, layout)
    kinds = [
        {plan.bound.devices[rank].kind for rank in range(32 * place, 32 * place + 32)} for place in range(4)
    ]
    assert kinds == [{"A100-SXM-80GB"}] * 2 + [{"H100-SXM-80GB"}] * 2


def test_explain_agrees_on_what_the_weaker_cards_bring(values: Constants) -> None:
    """Another calculator, which compiles: both pools over the stronger one alone, within a tenth."""
    where = cluster(MIXED)
    asked = mixed_question(where, network("llama2-7b"), batch=512, sequence=4096)
    strong, _ = strong_and_weak(asked.pools)
    alone = replace(asked, fabric=strong.fabric, devices=(64,), pools=())
    together = Layout(devices=128, pipeline=2, store=1, first_layers=8, head_layers=24)
    runs = (
        (alone, Layout(devices=64, pipeline=2, store=1), strong.cluster),
        (asked, together, where),
    )
    priced = [
        price_of_layout(question, Limits(), layout, time=values[0], memory=values[1]).step_s
        for question, layout, _ in runs
    ]
    explained = [step_of(*run) for run in runs]
    assert priced[0] / priced[1] == pytest.approx(explained[0] / explained[1], rel=0.1)
    assert 1.1 < priced[0] / priced[1] < 4 / 3


def step_of(question: Question, layout: Layout, where: Cluster) -> float:
    """As ``explain`` says."""
    found = estimate(plan_of(question, layout, where, shares=layout.data), where).step_s
    assert found is not None
    return found.expected


def pool(name: str, rate: float, devices: int) -> Pool:
    """Of so many devices."""
    kind = replace(accelerator("A100-SXM-80GB"), name=name, achievable_bf16_flops_per_s=rate)
    link = Link(level=Level.NODE, bytes_per_s=3e11, latency_s=0, source="test")
    alone = Cluster(
        name=name, nodes=(Node(accelerator=kind, num_devices=devices),), links=(link,), source="test"
    )
    return Pool(first=0, fabric=fabric_of(alone, "bf16"), cluster=alone)


@pytest.mark.parametrize(
    ("together_s", "usd", "efficiency", "pays_in_time", "pays_in_dollars"),
    [
        (0.75, (1.2, 1.0), 1.0, True, False),
        (0.75, (0.9, 1.0), 1.0, True, True),
        (1.1, (2.0, 1.0), 0.682, False, False),
    ],
)
def test_weak_devices_pay_or_do_not(
    together_s: float,
    usd: tuple[float, float],
    efficiency: float,
    pays_in_time: bool,
    pays_in_dollars: bool,
) -> None:
    """By hand: 8 devices of 1 beside 8 of 3 allow 4 / 3 of the speed."""
    found = Mixture(
        strong=pool("strong", 3e14, 8), weak=pool("weak", 1e14, 8), together_s=together_s, alone_s=1.0,
        together_usd=usd[0], alone_usd=usd[1],
    )  # fmt: skip
    assert found.efficiency == pytest.approx(efficiency, rel=1e-3)
    assert found.pays(Objective.TIME) is pays_in_time
    assert found.pays(Objective.DOLLARS) is pays_in_dollars


def test_devices_of_one_kind_and_of_alternating_kinds_are_no_pools() -> None:
    assert pools_of(cluster("64xA100"), "bf16") == ()
    mixed = cluster(MIXED)
    assert [(found.name, found.first, found.num_devices) for found in pools_of(mixed, "bf16")] == [
        ("A100-SXM-80GB", 0, 64),
        ("H100-SXM-80GB", 64, 64),
    ]
    assert pools_of(replace(mixed, nodes=(*mixed.nodes, mixed.nodes[0])), "bf16") == ()
