"""Sums that are compressed by a tensor's shape or by its largest elements are not joined with others."""

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan.program import OperatorKind


@pytest.mark.parametrize("compression", ["powersgd(2)", "topk(0.1)"])
def test_a_tensor_that_some_groups_compress_travels_alone(plan_of: PlanOf, compression: str) -> None:
    """Factors of several matrices in one are factors of none: only one group of two compresses here, and counts."""
    plan = plan_of(
        "MESH a 2, b 2\nSPLIT batch OVER a, b\nREDUCE grads OVER a\nREDUCE grads OVER b\n"
        f"REDUCE grads OVER b COMPRESS {compression} ON rank < 2"
    )
    sums = [operator for operator in plan.update.operators if operator.variants]
    assert len(sums) == len(plan.parameters)
    assert all(len(operator.inputs) == 1 for operator in sums)


def test_an_average_by_factors_takes_each_matrix_alone(plan_of: PlanOf) -> None:
    """The same for parameters that are averaged."""
    plan = plan_of("MESH site 2, dp 2\nAVERAGE params OVER site EVERY 8 STEPS COMPRESS powersgd(2)")
    averages = [operator for operator in plan.update.operators if operator.kind is OperatorKind.AVERAGE]
    assert len(averages) == len(plan.parameters)
