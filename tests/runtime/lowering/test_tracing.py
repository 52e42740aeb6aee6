"""Is what the program of a plan sends and computes what its plan says, for any number of ranks?"""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.plan.random_plans import Spoiling, random_job, spoil
from tests.runtime.lowering.small_plans import DROPPING, EXPERTS, LEARNED, ROTARY, WINDOWED, small_plan
from trimtab.app.compiling import compiled
from trimtab.app.machines import MachineFacts
from trimtab.cost.explanation.tracing import TraceFacts
from trimtab.plan.collectives import Send
from trimtab.plan.physical import Plan, Traffic
from trimtab.plan.program import Block, Operator, OperatorKind
from trimtab.plan.traffic import traffic_of
from trimtab.runtime.lowering import Rules
from trimtab.runtime.lowering.tracing import RankClass, judged, rank_classes, trace, trace_rank
from trimtab.runtime.optimizers import AdamW, Sgd
from trimtab.spec import StrategyError, load_job
from trimtab.spec.language import preset_names

RULES = Rules(optimizer=AdamW(lr=1e-3), learning_rate=lambda _: 1e-3, clip=0.5)

WIDE: dict[str, Any] = {
    **ROTARY,
    "layers": 16,
    "embed": 1024,
    "kv_heads": 8,
    "head_size": 128,
    "mlp": 4096,
    "vocab": 1024,
    "qk_norm": False,
}
"""Heads enough for eight ranks, layers enough for sixteen stages, and storage that 64 ranks can cut alike."""

EVEN: dict[str, Any] = {**WIDE, "layers": 4}
"""All ranks of a stage alike."""

MANY: dict[str, Any] = {**EVEN, "experts": 8, "top_k": 2}

SEQUENCE_PARALLEL = "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp"

Case = tuple[int, str, dict[str, Any], dict[str, Any]]

CASES: dict[str, Case] = {
    "dp, as many shares as nobody can divide": (12, "MESH dp 12", LEARNED, {"shares": 20, "batch": 40}),
    "dp, a tree": (32, "MESH dp 32\nREDUCE grads OVER dp USING tree", LEARNED, {"batch": 64}),
    "dp, doubling": (64, "MESH dp 64\nREDUCE grads OVER dp USING recursive_doubling", LEARNED, {"batch": 64}),
    "dp, between nodes and sites": (
        64,
        "MESH dp 64\nREDUCE grads OVER dp USING hierarchical(node) BUCKET 16KB",
        LEARNED,
        {"batch": 64},
    ),
    "dp, top-k and int8": (
        16,
        "MESH dp 16\nREDUCE grads OVER dp COMPRESS int8\n"
        "REDUCE grads WHERE dims LIKE '%,%' OVER dp COMPRESS topk(0.01)",
        LEARNED,
        {"batch": 16},
    ),
    "zero 3, recomputed, odd": (
        24,
        "MESH dp 24\nSTORE params, grads, states OVER dp\nRECOMPUTE activations WHERE layer % 2 = 0",
        DROPPING,
        {"batch": 48},
    ),
    "hsdp in bf16": (
        256,
        "MESH replica 8, dp 32\nSPLIT batch OVER replica, dp\nSTORE params, grads, states OVER dp\n"
        "REDUCE grads OVER replica, dp IN bf16",
        WIDE,
        {"batch": 256},
    ),
    "context by ulysses": (16, "MESH dp 2, cp 8\nSPLIT sequence OVER cp USING ulysses", WIDE, {}),
    "context by gathered keys": (16, "MESH dp 2, cp 8\nSPLIT sequence OVER cp USING allgather", WINDOWED, {}),
    "context by rings, recomputed": (
        64,
        "MESH dp 2, cp 4, tp 8\nSPLIT sequence OVER cp USING ring\nSPLIT heads, mlp, vocab OVER tp\n"
        "RECOMPUTE activations",
        WIDE,
        {},
    ),
    "experts in tensors and storage": (
        128,
        "MESH dp 4, ep 8, tp 4\nSPLIT batch OVER dp, ep\nSPLIT experts OVER ep\nSPLIT heads, mlp, vocab OVER tp\n"
        "STORE params, grads, states OVER dp",
        MANY,
        {"batch": 64},
    ),
    "gpipe": (8, "MESH pp 8\nSPLIT layers OVER pp USING gpipe MICROBATCHES 16", WIDE, {"batch": 16}),
    "uneven stages": (
        8,
        "MESH pp 4, dp 2\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 8\nPLACE layers BETWEEN 0 AND 6 ON pp 0",
        WIDE,
        {"batch": 16},
    ),
    "zero bubble as a V, a tied matrix": (
        16,
        "MESH pp 2, dp 8\nSPLIT layers OVER pp USING zbv MICROBATCHES 4\nSTORE states OVER dp",
        LEARNED,
        {"batch": 32},
    ),
    "interleaved zero bubble": (
        16,
        "MESH pp 8, dp 2\nSPLIT layers OVER pp USING interleaved_zero_bubble(2) MICROBATCHES 16",
        WIDE,
        {"batch": 32},
    ),
    "stages, experts, rings": (
        64,
        "MESH pp 2, dp 2, ep 4, cp 4\nSPLIT layers OVER pp USING looped_bfs(2) MICROBATCHES 2\n"
        "SPLIT batch OVER dp, ep\nSPLIT experts OVER ep\nSPLIT sequence OVER cp USING ring",
        EXPERTS,
        {"batch": 16},
    ),
    "all of it": (
        512,
        "MESH pp 8, dp 8, tp 8\nSPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 16\n"
        f"SPLIT heads, mlp, vocab OVER tp\n{SEQUENCE_PARALLEL}\nSTORE params, grads, states OVER dp\n"
        "RECOMPUTE activations",
        WIDE,
        {"batch": 128, "shares": 8},
    ),
}
"""Ranks, strategy, network, and what else is unusual."""


def _facts(plan: Plan, program: Plan | None = None) -> TraceFacts:
    """What a program does beside what a plan says; its own program by default."""
    return judged(plan, trace(program or plan, RULES, rank_classes(plan)))


def _check(plan: Plan) -> TraceFacts:
    found = _facts(plan)
    assert found.differences == ()
    assert found.is_as_planned
    assert sum(rank.num_ranks for rank in found.ranks) == plan.mesh.num_devices
    for rank in found.ranks:
        assert all(item.is_planned for item in (*rank.collectives, *rank.flops))
        assert all(item.traced == item.planned > 0 for item in rank.flops)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_strategy_does_what_its_plan_says(name: str) -> None:
    """A closed form that forgets a collective makes a slow plan look fast."""
    devices, text, fields, more = CASES[name]
    found = _check(small_plan(text, devices, **more, **fields))
    assert all(item.traced_bytes for rank in found.ranks for item in rank.collectives)


@pytest.mark.parametrize("name", sorted(preset_names()))
def test_a_preset_does_what_its_plan_says(name: str) -> None:
    """A preset is what most users run."""
    fields = MANY if "expert" in name else EVEN
    _check(small_plan(f"USE '{name}'", 64, batch=128, **fields))


GOLDEN = Path(__file__).parents[2] / "golden" / "plan" / "explanation"
LARGE = sorted(path.stem for path in GOLDEN.glob("*.yaml"))
_HERE = MachineFacts(cores=4, memory_bytes=8 * 10**9, has_accelerator=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_plan_of_a_large_network_does_what_it_says(name: str) -> None:
    """Large networks have what small ones have not: groups of heads, long samples, hundreds of layers."""
    text = (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    _check(compiled(load_job(text, source=f"{name}.yaml", read=lambda path: ""), _HERE))


@pytest.mark.slow
def test_random_plans_do_what_they_say() -> None:
    """Nobody thinks of every mixture."""
    num_plans, seed = 0, 500_000
    while num_plans < 150:
        seed += 1
        try:
            plan = random_job(seed).compile()
        except StrategyError:
            continue
        num_plans += 1
        assert _facts(plan).differences == (), seed


@pytest.mark.parametrize(
    ("text", "devices", "batch", "fields"),
    [
        (
            "MESH pp 2, dp 2, tp 2\nSPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 4\n"
            f"SPLIT heads, mlp, vocab OVER tp\n{SEQUENCE_PARALLEL}\nSTORE params, grads, states OVER dp\n"
            "RECOMPUTE activations WHERE layer % 2 = 0",
            8,
            8,
            LEARNED,
        ),
        ("MESH pp 2\nSPLIT layers OVER pp USING zbv MICROBATCHES 4", 2, 4, {**LEARNED, "layers": 6}),
        (
            "MESH ep 2, cp 2\nSPLIT batch OVER ep\nSPLIT experts OVER ep\nSPLIT sequence OVER cp USING ring",
            4,
            4,
            EXPERTS,
        ),
        ("MESH dp 3\nREDUCE grads OVER dp COMPRESS powersgd(2)", 3, 6, {**LEARNED, "tied": False}),
    ],
    ids=["stages", "as a V", "experts", "compressed"],
)
def test_what_is_multiplied_is_what_running_everything_counts(
    text: str, devices: int, batch: int, fields: dict[str, Any]
) -> None:
    """A layer that is counted for others and does something else would go unseen."""
    plan = small_plan(text, devices, batch=batch, **fields)
    for ranks in rank_classes(plan)[:2]:
        once, whole = (trace_rank(plan, RULES, ranks, is_whole=is_whole) for is_whole in (False, True))
        assert max(ran.times for ran in once.repeated) > 1
        assert (once.counts, once.flops, once.sending_flops) == (
            whole.counts,
            whole.flops,
            whole.sending_flops,
        )


def test_the_sum_of_the_schedule_is_what_a_block_counts() -> None:
    """What is multiplied must say by what."""
    plan = small_plan(
        "MESH pp 2\nSPLIT layers OVER pp USING zbv MICROBATCHES 4", 2, **{**LEARNED, "layers": 6}
    )
    for rank in _check(plan).ranks:
        assert {block.block for block in rank.blocks} <= {"embedding", "layers 0-5", "head"}
        by_layers = [block.times for block in rank.blocks if block.block == "layers 0-5"]
        assert by_layers == [3 * plan.work.microbatches] * 2


def test_nothing_is_allocated() -> None:
    """A network of 405 billion parameters is traced on a laptop, or not at all."""
    plan = small_plan(
        "MESH dp 2\nSTORE params OVER dp", 2, batch=2, **{**LEARNED, "embed": 2**16, "mlp": 2**20}
    )
    before = torch.empty(0).device
    found = _check(plan)
    assert found.ranks[0].flops[0].traced > 2**40
    assert torch.empty(0).device == before  # The default device is what it was.


def test_an_optimizer_without_fused_kernels_is_traced() -> None:
    """Whoever trains with SGD traces, too."""
    rules = replace(RULES, optimizer=Sgd(lr=0.1, momentum=0.9), clip=None)
    plan = small_plan("MESH dp 2", 2, clips=False, **LEARNED)
    assert judged(plan, trace(plan, rules, rank_classes(plan))).is_as_planned


def test_a_step_with_averages_is_traced() -> None:
    """What happens every few steps only would never be seen in the first one."""
    text = (
        "MESH site 2, dp 2\nSPLIT batch OVER site, dp\nREDUCE grads OVER dp\n"
        "AVERAGE params OVER site EVERY 64 STEPS USING nesterov(0.9)"
    )
    found = _check(small_plan(text, 4, **LEARNED))
    assert found.step == 64
    assert OperatorKind.AVERAGE in {item.operation for item in found.ranks[0].collectives}


# Mistakes that must be seen: a program that is not its plan's, a plan that says something else.

MIXED = (
    "MESH pp 2, dp 2, tp 2\nSPLIT batch OVER dp\nSPLIT layers OVER pp MICROBATCHES 2\n"
    "SPLIT heads, mlp, vocab OVER tp\nSTORE states OVER dp"
)


@pytest.mark.parametrize("spoiling", list(Spoiling))
def test_a_program_with_another_sum_is_seen(spoiling: Spoiling) -> None:
    """One collective more, one less, one over another axis."""
    plan = small_plan(MIXED, 8, **EVEN)
    spoilt = next(
        found
        for seed in range(100)
        for found in spoil(plan, random.Random(seed))
        if found.spoiling is spoiling
    )
    found = _facts(plan, program=spoilt.plan)
    assert not found.is_as_planned
    assert any(not item.is_planned for rank in found.ranks for item in rank.collectives)


def test_a_wrong_byte_is_seen() -> None:
    """Bytes are compared one by one, not about."""
    plan = small_plan(MIXED, 8, **EVEN)
    traffic = list(plan.traffic)
    index = next(at for at, found in enumerate(traffic) if found.operator.kind is OperatorKind.REDUCE_SCATTER)
    traffic[index] = _with_one_byte_more(traffic[index])
    found = judged(replace(plan, traffic=tuple(traffic)), trace(plan, RULES, rank_classes(plan)))
    assert not found.is_as_planned
    assert {text.partition(": ")[2].partition(" of ")[0] for text in found.differences} == {"reduce_scatter"}


def _with_one_byte_more(traffic: Traffic) -> Traffic:
    (indices, sends), *others = traffic.sends
    first = sends[0]
    more = Send(first.source, first.target, first.elements + 1)
    return replace(traffic, sends=((indices, (more, *sends[1:])), *others))


def test_a_product_more_is_seen() -> None:
    """A product that is computed twice makes no other bytes: only FLOPs tell."""
    plan = small_plan(MIXED, 8, **EVEN)
    blocks = tuple(_with_one_product_more(block) for block in plan.blocks)
    found = _facts(plan, program=replace(plan, blocks=blocks))
    assert not found.is_as_planned
    assert all(item.is_planned for rank in found.ranks for item in rank.collectives)
    assert all("forward pass" in text for text in found.differences)
    assert len(found.differences) == len(found.ranks)


def _with_one_product_more(block: Block) -> Block:
    """A layer that makes its queries twice."""
    operators: list[Operator] = []
    for operator in block.forward:
        operators.append(operator)
        if operator.kind is OperatorKind.LINEAR and operator.parameters[0].endswith("wq.weight"):
            operators.append(operator)
    return replace(block, forward=tuple(operators))


def test_traffic_that_is_forgotten_is_seen() -> None:
    """The closed form of another plan is not this one's."""
    plan = small_plan(MIXED, 8, **EVEN)
    found = judged(replace(plan, traffic=()), trace(plan, RULES, rank_classes(plan)))
    assert not found.is_as_planned
    assert all(item.planned_runs == 0 for rank in found.ranks for item in rank.collectives)
    assert judged(
        replace(plan, traffic=traffic_of(plan)), trace(plan, RULES, rank_classes(plan))
    ).is_as_planned


# Who stands for whom.

PLACED = {
    "even": ("MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp", 4, {**ROTARY, "vocab": 64}, [(0, 1, 2, 3)]),
    "the last part of the vocabulary is shorter": (
        "MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp",
        4,
        ROTARY,
        [(0, 2), (1, 3)],
    ),
    "every stage": ("MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 2", 4, ROTARY, [(0, 1), (2, 3)]),
    "a tree: who has leaves, who is one": (
        "MESH dp 4\nREDUCE grads OVER dp USING tree",
        4,
        LEARNED,
        [(0, 2), (1, 3)],
    ),
}


@pytest.mark.parametrize("name", PLACED)
def test_ranks_that_differ_are_told_apart(name: str) -> None:
    """One rank for all of them would hide the corner that does something else."""
    text, devices, fields, expected = PLACED[name]
    assert [found.ranks for found in rank_classes(small_plan(text, devices, **fields))] == expected


@pytest.mark.parametrize(
    ("text", "devices", "fields"),
    [
        ("MESH dp 8\nREDUCE grads OVER dp USING tree", 8, ROTARY),
        (
            "MESH replica 2, dp 4\nSPLIT batch OVER replica, dp\nSTORE params, grads, states OVER dp",
            8,
            LEARNED,
        ),
        (MIXED, 8, {**ROTARY, "vocab": 65}),
        ("MESH cp 4, tp 2\nSPLIT heads, mlp, vocab OVER tp\nSPLIT sequence OVER cp USING ring", 8, ROTARY),
    ],
    ids=["tree", "stored", "stages and tensors", "rings"],
)
def test_a_rank_does_what_its_representative_does(text: str, devices: int, fields: dict[str, Any]) -> None:
    """A class with a rank of another sort proves nothing for it."""
    plan = small_plan(text, devices, **fields)
    for ranks in rank_classes(plan):
        first, *others = (trace_rank(plan, RULES, RankClass((rank,))) for rank in ranks.ranks)
        for other in others:
            assert (other.counts, other.flops) == (first.counts, first.flops)
