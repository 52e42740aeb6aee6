"""The programs of a plan's blocks."""

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan.placements import PARTIAL
from trimtab.plan.program import OperatorKind
from trimtab.plan.verifier import accumulations


@pytest.mark.parametrize("model", ["gpt-3m", "llama-3m"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_every_parameter_has_a_gradient(plan_of: PlanOf, model: str, qk_norm: bool) -> None:
    """A parameter that no block uses, such as the bias of a layer norm over heads, would never be trained."""
    plan = plan_of("MESH dp 4", model=model, qk_norm=qk_norm)
    assert {name for name, _, _ in accumulations(plan)} == set(plan.parameters)


@pytest.mark.parametrize("layer_parameter", ["attention.wo.bias", "mlp.down.bias"])
def test_a_bias_added_to_pieces_of_the_stream_has_summands_for_a_gradient(
    plan_of: PlanOf, layer_parameter: str
) -> None:
    """Each rank sees its own part of a whole bias only: replicas would drift apart, each trained in another part."""
    plan = plan_of(
        "MESH tp 4\nSPLIT heads, mlp, vocab OVER tp\nSPLIT embed OF activations WHERE kind = 'residual' OVER tp",
        layers=2,
    )
    gradient = plan.blocks[1].values[f"grad:param:{layer_parameter}"]
    assert gradient.placements.on("tp") == PARTIAL
    summed = next(
        operator for operator in plan.update.operators if f"acc:layers.0.{layer_parameter}" in operator.inputs
    )
    assert summed.kind is OperatorKind.ALL_REDUCE
