"""FLOPs counted operator by operator, against the count that the catalog makes of a network by itself."""

import pytest

from tests.plan.conftest import PlanOf
from trimtab.catalog import network, network_names
from trimtab.cost.flops import Flops, ring_scores_again, scores_of_sample, stage_flops, step_flops
from trimtab.plan.physical import Plan

SPLITS = {
    "data": "",
    "tensors": "MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp",
    "sequence": "MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\n"
    "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp",
    "ulysses": "MESH dp 2, cp 2\nSPLIT sequence OVER cp USING ulysses",
    "ring": "MESH dp 2, cp 2\nSPLIT sequence OVER cp USING ring",
    "gathered keys": "MESH dp 2, cp 2\nSPLIT sequence OVER cp USING allgather",
    "stages": "MESH pp 2, dp 2\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 4",
    "a v of stages": "MESH pp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\nSPLIT layers OVER pp USING zbv MICROBATCHES 4",
    "stored": "STORE params, grads, states OVER dp",
}


def needed(plan: Plan) -> tuple[int, int]:
    """What the network needs for the tokens of a step: causal, full."""
    tokens, sequence = plan.work.tokens, plan.work.sequence
    return (
        plan.network.flops_per_token(sequence, causal=True) * tokens,
        plan.network.flops_per_token(sequence, causal=False) * tokens,
    )


def both(flops: Flops) -> tuple[int, int]:
    return flops.causal, flops.full


@pytest.mark.parametrize("name", network_names())
def test_one_device_computes_what_the_network_needs(name: str, plan_of: PlanOf) -> None:
    """Two counts that share no line of code agree for every network of the catalog."""
    found = step_flops(plan_of("", model=name, devices=1, batch=2, sequence=64))
    plan = plan_of("", model=name, devices=1, batch=2, sequence=64)
    assert both(found.useful) == needed(plan)
    assert found.recompute == Flops()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("model", ["gpt-3m", "llama-3m"])
def test_ranks_share_the_work_and_add_none(model: str, split: str, plan_of: PlanOf) -> None:
    """A split that computes something twice is slower than its degree says."""
    plan = plan_of(SPLITS[split], model=model)
    assert both(step_flops(plan).useful) == needed(plan)


def test_experts_are_shared(plan_of: PlanOf) -> None:
    """Tokens go to the ranks of their experts; the rest is split by the batch."""
    plan = plan_of("MESH dp 2, ep 2\nSPLIT batch OVER dp, ep\nSPLIT experts OVER ep", model="moe-3m")
    assert both(step_flops(plan).useful) == needed(plan)


def test_windows_count_what_queries_see(plan_of: PlanOf) -> None:
    """One full layer, three with a window of 32 of 128 tokens."""
    plan = plan_of("", devices=1, window=32, full_layers=1)
    assert both(step_flops(plan).useful) == needed(plan)
    assert step_flops(plan).useful.causal < step_flops(plan_of("", devices=1)).useful.causal


def test_repeated_work_shows(plan_of: PlanOf) -> None:
    """Ranks of ep see the same tokens: all but the experts is computed twice."""
    plan = plan_of("MESH dp 2, ep 2\nSPLIT batch OVER dp\nSPLIT experts OVER ep", model="moe-3m")
    assert step_flops(plan).useful.causal > 1.5 * needed(plan)[0]


def test_recompute_is_one_forward_pass_of_its_layers(plan_of: PlanOf) -> None:
    """All activations of layer 0 again: its forward pass but the last products, which nobody needs."""
    plan = plan_of("RECOMPUTE activations WHERE layer = 0", devices=1)
    model = network("gpt-3m")
    forward = model.layer_forward_flops(0, 128, causal=True)
    # The products of attention's output and of the MLP's are summands of rows and need not come again.
    skipped = 2 * (model.embed * model.embed + model.mlp * model.embed)
    assert step_flops(plan).recompute.causal == (forward - skipped) * plan.work.tokens


def test_scores_by_hand() -> None:
    """Queries of 6 tokens under a window of 3 see 1, 2, 3, 3, 3, 3 keys."""
    assert scores_of_sample(6, 3) == (15, 18)
    assert scores_of_sample(6, None) == (21, 36)
    assert scores_of_sample(2, 9) == (3, 4)


def test_attention_is_a_part_of_the_causal_count(plan_of: PlanOf) -> None:
    """Its rate is another than that of matrices."""
    plan = plan_of("", devices=1)
    model, sequence = plan.network, plan.work.sequence
    heads = model.heads * model.head_size
    scores = scores_of_sample(sequence, None)[0]
    assert step_flops(plan).useful.attention == 3 * 4 * heads * scores * model.layers * plan.work.batch


def test_rings_compute_a_quarter_of_the_gradients_of_attention_again(plan_of: PlanOf) -> None:
    """Who compares counted products with the plan finds five where the convention has four."""
    ring, gathered = (
        plan_of(SPLITS[name], model="gpt-3m", devices=4, batch=4, sequence=64)
        for name in ("ring", "gathered keys")
    )
    (forward,) = (stage.forward for stage in stage_flops(ring))
    all_scores = forward.full - (forward.causal - forward.attention)
    assert ring_scores_again(ring) == (all_scores // 2,)
    assert ring_scores_again(gathered) == (0,)
