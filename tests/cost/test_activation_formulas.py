"""What a layer keeps for its backward pass, by one hand-written formula, for six networks."""

from math import ceil

import pytest

from tests.plan.conftest import PlanOf
from trimtab.catalog import Activation, Network, network
from trimtab.cost.counts import counts_of
from trimtab.cost.memory import MemoryCounter, Moment
from trimtab.plan.physical import Plan
from trimtab.plan.program import OperatorKind

BATCH, SEQUENCE = 2, 64
MODELS = ["gpt-3m", "llama-3m", "moe-3m", "gpt2-124m", "llama2-7b", "mixtral-8x7b"]


def kept(plan: Plan, group: int = 0) -> int:
    """Bytes of activations that a rank keeps at the peak of the backward pass."""
    return MemoryCounter(plan, counts_of(plan), num_leaves=1).of(group).moments[Moment.BACKWARD].activations


def layer_bytes(model: Network, tokens: int) -> int:
    """Inputs of the two norms and of every product, queries, keys and values, and what an activation needs."""
    heads, keys = model.size_of("heads"), model.size_of("kv_heads")
    attention = tokens * (2 * model.embed + 2 * heads + 2 * keys)
    inside = 3 if model.activation is Activation.SWIGLU else 2  # before, (gate,) after
    if not model.experts:
        return 4 * (attention + tokens * (2 * model.embed + inside * model.mlp))
    slots = model.experts * ceil(tokens * model.top_k / model.experts)
    # Router logits and gates; what experts are given, their inside, and what they give, for the gates' gradient.
    routed = tokens * 2 * model.experts + slots * (2 * model.embed + inside * model.mlp)
    return 4 * (attention + tokens * 2 * model.embed + routed)


@pytest.mark.parametrize("name", MODELS)
def test_activations_of_six_networks(name: str, plan_of: PlanOf) -> None:
    """S-PLN-01: experts have their own width, are used by some tokens, and are priced so."""
    one, two = (
        kept(
            plan_of(
                "", devices=1, model=name, layers=layers, batch=BATCH, microbatch=BATCH, sequence=SEQUENCE
            )
        )
        for layers in (1, 2)
    )
    assert two - one == layer_bytes(network(name), BATCH * SEQUENCE)


@pytest.mark.parametrize(
    ("small", "large", "ratio"),
    [
        ({"sequence": 64}, {"sequence": 128}, 2.0),
        ({"microbatch": 1}, {"microbatch": 4}, 4.0),
        ({"compute": "bf16"}, {"compute": "fp32"}, 2.0),
    ],
)
def test_a_figure_is_no_constant(
    small: dict[str, object], large: dict[str, object], ratio: float, plan_of: PlanOf
) -> None:
    """S-PLN-02: sequence, microbatch and type each change activations as they must."""
    first, second = (kept(plan_of("", devices=1, model="llama-3m", **options)) for options in (small, large))
    assert second / first == pytest.approx(ratio, rel=0.02)


def test_recompute_and_stage_change_it(plan_of: PlanOf) -> None:
    """S-PLN-02, S-PLN-03: what is computed again is not kept, and the first of two stages keeps two microbatches."""
    text = "MESH pp 2\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 4"
    plan = plan_of(text, devices=2, model="llama-3m", batch=4, sequence=SEQUENCE)
    first, last = kept(plan, 0), kept(plan, 1)
    layer = layer_bytes(network("llama-3m"), SEQUENCE)
    assert first == pytest.approx(2 * 2 * layer, rel=0.01)
    assert 2 * layer < last < first
    again = plan_of(f"{text}\nRECOMPUTE activations", devices=2, model="llama-3m", batch=4, sequence=SEQUENCE)
    assert kept(again, 0) < first / 4


def test_sums_of_every_microbatch_are_counted(plan_of: PlanOf) -> None:
    """S-PLN-18: sharded and replicated axes, four microbatches: what is scattered each time is counted four times."""
    plan = plan_of("MESH replica 2, dp 2\nSTORE params, grads, states OVER dp", batch=16, microbatch=1)
    assert plan.work.microbatches == 4
    layers = next(block for block in plan.blocks if block.layers)
    runs = {
        (traffic.operator.kind, traffic.transfer.axes): traffic.runs[0]
        for traffic in plan.traffic
        if traffic.block == layers.name or (traffic.block == "update" and len(traffic.tensors) > 1)
    }
    assert runs[OperatorKind.REDUCE_SCATTER, ("dp",)] == 4 * 4
    assert runs[OperatorKind.ALL_GATHER, ("dp",)] == 4 * 4
    assert runs[OperatorKind.ALL_REDUCE, ("replica",)] == 1
