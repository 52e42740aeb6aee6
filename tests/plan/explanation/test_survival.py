"""The table of DESIGN: what each layout allows when a rank dies."""

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan.explanation import survival
from trimtab.terms import OnLoss

PP = "SPLIT layers OVER pp USING 1f1b MICROBATCHES 2"
TP = "SPLIT heads, mlp, vocab OVER tp"
STORED = "STORE params, grads, states OVER dp"

LAYOUTS = [
    ("MESH dp *", OnLoss.EXACT, None),
    (f"MESH replica 2, dp 2\nSPLIT batch OVER replica, dp\n{STORED}", OnLoss.REDO, 3),
    (f"MESH pp 2, dp 2\n{PP}", OnLoss.REDO, 2),
    (f"MESH dp 2, tp 2\n{TP}", OnLoss.REDO, 2),
    ("MESH dp 2, cp 2\nSPLIT sequence OVER cp USING ring", OnLoss.REDO, 2),
    ("STORE states OVER dp", OnLoss.ROLLBACK, 1),
    ("STORE grads, states OVER dp", OnLoss.ROLLBACK, 1),
    (STORED, OnLoss.ROLLBACK, 1),
    ("MESH pp 4\nSPLIT layers OVER pp USING gpipe", OnLoss.ROLLBACK, 2),
    (f"MESH tp 4\n{TP}", OnLoss.ROLLBACK, 2),
    (f"MESH pp 2, dp 2\n{PP}\nSTORE states OVER dp", OnLoss.ROLLBACK, 3),
]


@pytest.mark.parametrize(("text", "rule", "line"), LAYOUTS)
def test_the_strongest_rule_and_the_line_that_limits_it(
    text: str, rule: OnLoss, line: int | None, plan_of: PlanOf
) -> None:
    """A promise that the layout cannot keep is broken on the worst day."""
    found = survival(plan_of(text, shares=8))
    assert found.rule is rule
    assert (found.line.line if found.line else None) == line


def test_averaged_replicas_promise_no_same_bits(plan_of: PlanOf) -> None:
    """They differ by design; what is left are the same samples."""
    text = "MESH site 2, dp 2\nSPLIT batch OVER site, dp\nAVERAGE params OVER site EVERY 8 STEPS"
    found = survival(plan_of(text, shares=8))
    assert found.rule is OnLoss.SAME_BATCH
    assert "by design" in found.reason
    alone = survival(
        plan_of("MESH site 4\nSPLIT batch OVER site\nAVERAGE params OVER site EVERY 8 STEPS", shares=8)
    )
    assert alone.rule is OnLoss.ROLLBACK


def test_without_shares_the_order_is_the_backends(plan_of: PlanOf) -> None:
    """Same samples, not the same bits."""
    assert survival(plan_of("MESH dp *")).rule is OnLoss.SAME_BATCH


def test_experts_on_data_ranks_are_no_replicas(plan_of: PlanOf) -> None:
    """Each rank of ep holds other experts, although it computes other samples as well."""
    text = "MESH dp 2, ep 2\nSPLIT batch OVER dp, ep\nSPLIT experts OVER ep"
    found = survival(plan_of(text, model="moe-3m", shares=8))
    assert found.rule is OnLoss.REDO
    assert "experts is split over ep" in found.reason
