from dataclasses import replace

import pytest

from tests.plan.conftest import PlanOf
from trimtab.catalog import accelerator, cluster
from trimtab.cost.counts import counts_of
from trimtab.cost.flops import Flops
from trimtab.cost.stage_times import (
    ACHIEVABLE_SHARE,
    ATTENTION_SHARE,
    MATRIX_SHARE,
    Passes,
    best_flops_per_s,
    compute_s,
    stage_passes,
)

H100, A100 = accelerator("H100-SXM-80GB"), accelerator("A100-SXM-80GB")
TP = "MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp"


def passes(plan_of: PlanOf, text: str, on: str = "512xH100", **options: object) -> tuple[Passes, ...]:
    plan = plan_of(text, on=on, compute="bf16", **options)
    found = stage_passes(plan, counts_of(plan), cluster(on))
    assert found is not None
    return found


def test_the_best_measured_product_goes_before_the_peak() -> None:
    """A peak that nobody reaches makes every plan look fast."""
    assert best_flops_per_s(H100, "bf16") == 794.5e12
    assert best_flops_per_s(H100, "fp32") == pytest.approx(67e12 * ACHIEVABLE_SHARE)
    unknown = replace(H100, bf16_flops_per_s=None, achievable_bf16_flops_per_s=None)
    assert best_flops_per_s(unknown, "bf16") is None


def test_attention_runs_at_its_own_rate() -> None:
    """Long samples spend their time there."""
    assert compute_s(Flops(100, 100, 0), 1.0) == pytest.approx(100 / MATRIX_SHARE)
    assert compute_s(Flops(100, 160, 40), 1.0) == pytest.approx(60 / MATRIX_SHARE + 40 / ATTENTION_SHARE)


def test_collectives_of_activations_are_waited_for(plan_of: PlanOf) -> None:
    """Two sums a layer forward and two back stand on the path of every layer."""
    (whole,) = passes(plan_of, "MESH dp *")
    (cut,) = passes(plan_of, TP)
    assert whole.forward.exposed_s == 0
    assert cut.forward.exposed_s > 0
    assert cut.backward_input.exposed_s > 0
    assert cut.forward.compute_s == pytest.approx(whole.forward.compute_s / 2, rel=0.05)


def test_gathers_hide_behind_the_computation(plan_of: PlanOf) -> None:
    """Where a layer computes longer than the next is gathered, ZeRO-3 costs nothing; where not, the difference."""
    text = "STORE params, grads, states OVER dp"
    (large,) = passes(plan_of, text, model="llama2-7b", devices=8, batch=64, microbatch=8, sequence=4096)
    assert large.forward.exposed_s == 0
    assert large.forward.hidden_s > 0
    (small,) = passes(plan_of, text)
    assert small.forward.exposed_s > 0
    assert small.forward.hidden_s == pytest.approx(small.forward.compute_s)


def test_recompute_belongs_to_the_backward_pass(plan_of: PlanOf) -> None:
    """The stage before waits for it."""
    (found,) = passes(plan_of, "RECOMPUTE activations WHERE layer >= 0")
    assert 0 < found.backward_input.recompute_s < found.forward.compute_s
    assert found.forward.recompute_s == 0


def test_the_slowest_device_of_a_stage_decides(plan_of: PlanOf) -> None:
    """New cards wait for old ones."""
    mixed = passes(plan_of, "MESH dp *", on="64xA100+64xH100", devices=128, batch=128)
    old = passes(plan_of, "MESH dp *", on="64xA100", devices=64, batch=64)
    assert mixed[0].forward.compute_s == pytest.approx(old[0].forward.compute_s)
