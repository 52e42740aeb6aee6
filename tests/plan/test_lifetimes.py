"""Which values give their place to what is made of them?"""

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan.lifetimes import sums_in_place


def test_gradients_that_travel_together_are_summed_in_place(plan_of: PlanOf) -> None:
    """A second copy of all gradients would not fit where the plan says that it fits."""
    plan = plan_of("MESH dp 2", devices=2, batch=2, layers=2)
    found = sums_in_place(plan.update)
    made = {name for name in plan.update.values if name.startswith("acc:") and "@" not in name}
    assert made <= found.keys()
    assert "loss" not in found
    assert "norm_square" not in found


@pytest.mark.parametrize("how", ["COMPRESS int8", "COMPRESS topk(0.1)", "IN bf16", "USING tree"])
def test_what_travels_in_another_form_is_not(how: str, plan_of: PlanOf) -> None:
    """Gradients would be overwritten by what is only sent."""
    plan = plan_of(f"MESH dp 2\nREDUCE grads OVER dp {how}", devices=2, batch=2, layers=2)
    assert sums_in_place(plan.update) == {}
