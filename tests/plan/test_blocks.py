"""The programs of a plan's blocks."""

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan.verifier import accumulations


@pytest.mark.parametrize("model", ["gpt-3m", "llama-3m"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_every_parameter_has_a_gradient(plan_of: PlanOf, model: str, qk_norm: bool) -> None:
    """A parameter that no block uses, such as the bias of a layer norm over heads, would never be trained."""
    plan = plan_of("MESH dp 4", model=model, qk_norm=qk_norm)
    assert {name for name, _, _ in accumulations(plan)} == set(plan.parameters)
