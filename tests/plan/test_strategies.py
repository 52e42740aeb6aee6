"""The strategies of docs/strategies.md: each compiles, is verified, and does what its text says."""

import re
from pathlib import Path

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan.physical import Plan
from trimtab.plan.program import OperatorKind
from trimtab.plan.verifier import find_wrong

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")
STRATEGIES = dict(re.findall(r"^## (.+?)\n.*?```trim\n(.*?)```", PAGE, flags=re.MULTILINE | re.DOTALL))


def compiled(title: str, plan_of: PlanOf) -> Plan:
    text = STRATEGIES[title]
    stated = re.match(r"-- (\S+) on (\d+) devices of (\S+)", text)
    assert stated is not None, "the first comment names network, devices and cluster"
    return plan_of(
        text, model=stated[1], devices=int(stated[2]), on=stated[3], batch=256, sequence=1024, compute="bf16"
    )


def test_there_are_ten() -> None:
    """The page's claim is a number."""
    assert len(STRATEGIES) == 10


@pytest.mark.parametrize("title", STRATEGIES)
def test_compiles_and_is_right(title: str, plan_of: PlanOf) -> None:
    """A strategy that the page shows and the compiler refuses is an advertisement."""
    plan = compiled(title, plan_of)
    assert list(find_wrong(plan)) == []
    assert plan.warnings == ()


def routes(plan: Plan, kind: OperatorKind = OperatorKind.ALL_REDUCE) -> dict[str, set[str]]:
    """By route, the parameters that travel so in the update."""
    found: dict[str, set[str]] = {}
    for traffic in plan.traffic:
        if traffic.block == "update" and traffic.operator.kind is kind:
            names = {name.partition(":")[2].partition("@")[0] for name in traffic.tensors}
            found.setdefault(traffic.transfer.route, set()).update(names)
    return found


def test_routes_by_size(plan_of: PlanOf) -> None:
    """Norms go by tree, matrices around the ring."""
    found = routes(compiled("Small first layers by tree, the rest around a ring", plan_of))
    assert "final_norm.weight" in found["tree"]
    assert "layers.0.mlp.up.weight" in found["ring"]
    assert not found["tree"] & found["ring"]


def test_compression_by_row(plan_of: PlanOf) -> None:
    """Top-k for the embedding, low rank for late matrices, nothing for norms."""
    plan = compiled("Compression where it does no harm", plan_of)
    by_compression: dict[str, str] = {}
    for traffic in plan.traffic:
        if traffic.block == "update":
            by_compression |= dict.fromkeys(traffic.tensors, traffic.transfer.compress)
    assert by_compression["tied:embedding.weight"] == "topk"
    assert by_compression["acc:layers.6.attention.wq.weight"] == "powersgd"
    assert by_compression["acc:layers.5.attention.wq.weight"] == "none"
    assert by_compression["acc:final_norm.weight"] == "none"


def test_two_periods(plan_of: PlanOf) -> None:
    """Two collectives over site, at their own rates."""
    plan = compiled("Two periods of averaging", plan_of)
    periods = {operator.every for operator in plan.update.operators if operator.kind is OperatorKind.AVERAGE}
    assert periods == {16, 128}


def test_classes_of_cards(plan_of: PlanOf) -> None:
    """Groups of old cards in bf16, groups of new ones in fp32, and each on its own devices."""
    plan = compiled("Old cards and new ones", plan_of)
    wires = {
        traffic.transfer.wire: {rank for group in traffic.groups for rank in group}
        for traffic in plan.traffic
        if traffic.block == "update" and traffic.transfer.axes == ("dp",) and "acc:" in traffic.tensors[0]
    }
    assert wires == {"bf16": set(range(64)), "fp32": set(range(64, 128))}


def test_recomputed_stage(plan_of: PlanOf) -> None:
    """Only layers of the first stage recompute."""
    plan = compiled("Uneven stages, recomputed where memory is short", plan_of)
    again = {layer for block in plan.blocks if block.recompute for layer in block.layers}
    assert again == set(range(18))
    assert plan.pipeline.stage_of_layer.count(0) == 18


def test_matrix_cut_the_other_way(plan_of: PlanOf) -> None:
    """Attention's output is gathered, and no sum follows its product."""
    plan = compiled("One matrix cut the other way", plan_of)
    block = plan.block_of(0)
    kinds = [(operator.kind, operator.inputs[0]) for operator in block.forward if operator.transfer]
    assert (OperatorKind.ALL_GATHER, "attention.out") in kinds
    assert sum(kind is OperatorKind.ALL_REDUCE for kind, _ in kinds) == 1


def test_sealed_sites(plan_of: PlanOf) -> None:
    """Everything that sums gradients over site is sealed; what stays inside is not."""
    plan = compiled("Sealed between sites, exact where it matters", plan_of)
    for traffic in plan.traffic:
        if traffic.block == "update" and traffic.tensors[0].startswith(("acc:", "tied:")):
            assert traffic.transfer.is_sealed is ("site" in traffic.transfer.axes)
    assert plan.block_of(0).values["attention.q"].dtype == "fp32"
    assert plan.block_of(2).values["attention.q"].dtype == "bf16"
    assert plan.parameters["embedding.weight"].offloaded == ("states",)


def test_each_way_names_its_own_line(plan_of: PlanOf) -> None:
    """Who asks why old cards send bf16 is pointed at that line."""
    plan = compiled("Old cards and new ones", plan_of)
    lines = {
        traffic.transfer.wire: traffic.because.line.line if traffic.because.line else None
        for traffic in plan.traffic
        if traffic.block == "update" and traffic.transfer.axes == ("dp",) and "acc:" in traffic.tensors[0]
    }
    assert lines == {"bf16": 6, "fp32": 5}


@pytest.mark.parametrize(
    "text",
    [
        "MESH dp 2, cp 2, tp 2\nSPLIT sequence OVER cp USING ulysses\nSPLIT heads, mlp, vocab OVER tp",
        "MESH dp 2, cp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\nSPLIT sequence OVER cp USING ulysses",
        "MESH dp 2, tp 2, cp 2\nSPLIT batch OVER dp\nSPLIT heads OVER tp\nSPLIT sequence OVER cp USING ulysses",
    ],
)
def test_ulysses_beside_tensor_parallelism(text: str, plan_of: PlanOf) -> None:
    """Heads are cut by tp, then inside by the exchange over cp; in any order of lines."""
    plan = plan_of(text, devices=8)
    block = plan.block_of(0)
    attention = next(operator for operator in block.forward if operator.kind is OperatorKind.ATTENTION)
    for name in attention.inputs:
        dim = "heads" if "attention.q" in name else "kv_heads"
        assert block.values[name].placements.axes_cutting(dim) == ("tp", "cp")


@pytest.mark.parametrize(
    "lines",
    [
        ["SPLIT batch OVER dp, ep", "SPLIT sequence OVER cp", "SPLIT experts OVER ep"],
        ["SPLIT experts OVER ep", "SPLIT sequence OVER cp", "SPLIT batch OVER ep, dp"],
    ],
)
def test_experts_beside_a_cut_sequence(lines: list[str], plan_of: PlanOf) -> None:
    """Tokens that differ over three axes reach their experts over one, in any order of lines."""
    plan = plan_of("\n".join(["MESH dp 2, cp 2, ep 2", *lines]), devices=8, model="moe-3m")
    kinds = [operator.kind for operator in plan.block_of(0).forward]
    assert kinds.count(OperatorKind.ALL_TO_ALL) == 2


def test_powersgd_sums_its_two_matrices_one_after_the_other(plan_of: PlanOf) -> None:
    """Three ranks cut each of them into pieces of its own: what is rounded up is rounded up twice."""
    text = "MESH dp 3\nREDUCE grads WHERE name = 'embedding.weight' OVER dp COMPRESS powersgd(4)"
    plan = plan_of(text, devices=3, batch=3, vocab=257)
    (found,) = (traffic for traffic in plan.traffic if traffic.transfer.compress == "powersgd")
    embed = plan.network.embed
    pieces = -(-4 * 257 // 3) + -(-4 * embed // 3)
    assert found.payload_bytes == 4 * (4 * 257 + 4 * embed)
    assert found.sent_bytes(0) == 2 * 2 * pieces * 4
