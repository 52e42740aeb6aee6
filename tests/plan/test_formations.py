"""On how many devices may a strategy go on, and which of its ranks stand and fall together?"""

import pytest

from tests.plan.conftest import PlanOf
from trimtab.plan.resizing import elastic_axes, has_second_copy, units_of

HSDP = "MESH replica 2, dp 2\nSPLIT batch OVER replica, dp\nSTORE params, grads, states OVER dp"


@pytest.mark.parametrize(
    ("strategy", "axes"),
    [
        ("MESH dp 4\nSTORE params, grads, states OVER dp", ("dp",)),
        (HSDP.replace("replica 2, dp 2", "dp 2, replica 2"), ("replica", "dp")),
        ("MESH dp 2, tp 2\nSPLIT batch OVER dp\nSPLIT heads, mlp OVER tp", ("dp",)),
        ("MESH pp 2, dp 2\nSPLIT layers OVER pp\nSPLIT batch OVER dp", ("dp",)),
        ("MESH tp 4\nSPLIT heads, mlp OVER tp", ()),
        ("MESH site 2, dp 2\nSPLIT batch OVER site, dp\nREDUCE grads OVER dp\nAVERAGE params OVER site EVERY 4 STEPS", ("dp",)),
    ],
)  # fmt: skip
def test_axes_that_split_samples_only_may_shrink(
    plan_of: PlanOf, strategy: str, axes: tuple[str, ...]
) -> None:
    """A sum inside a product has another order over fewer ranks, and replicas that differ by design are no spares."""
    assert elastic_axes(plan_of(strategy, devices=4)) == axes


def test_a_unit_is_what_holds_one_copy_of_the_state(plan_of: PlanOf) -> None:
    """One dead rank breaks its unit; the others are whole."""
    assert units_of(plan_of(HSDP, devices=4)) == ((0, 1), (2, 3))
    assert units_of(plan_of("MESH dp 2, tp 2\nSPLIT batch OVER dp\nSPLIT heads OVER tp", devices=4)) == ((0, 1), (2, 3))  # fmt: skip
    assert units_of(plan_of("MESH dp 4\nSTORE states OVER dp", devices=4)) == ((0, 1, 2, 3),)


@pytest.mark.parametrize(
    ("strategy", "has"),
    [
        (HSDP, True),
        ("MESH dp 4\nSTORE states OVER dp", False),
        ("MESH cp 4\nSPLIT sequence OVER cp USING allgather", True),
        ("MESH pp 4\nSPLIT layers OVER pp", False),
        ("MESH tp 4\nSPLIT heads, mlp, vocab OVER tp", False),
    ],
)
def test_copies_are_worth_their_memory_where_nobody_else_holds_the_same(
    plan_of: PlanOf, strategy: str, has: bool
) -> None:
    """Ranks that share a sequence hold the same weights, though they compute the same samples."""
    assert has_second_copy(plan_of(strategy, devices=4)) is has
