from tests.plan.conftest import PlanOf
from trimtab.plan.explanation import rank_groups


def ranks(plan_of: PlanOf, text: str, **options: object) -> list[tuple[int, ...]]:
    return [group.ranks for group in rank_groups(plan_of(text, **options))]


def test_without_a_pipeline_all_ranks_are_one_group(plan_of: PlanOf) -> None:
    """Pieces differ in their data, not in what a reader must know."""
    assert ranks(plan_of, "MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp\nSTORE states OVER dp") == [
        (0, 1, 2, 3)
    ]


def test_a_place_in_the_pipeline_makes_a_group(plan_of: PlanOf) -> None:
    """Stages hold other layers; the last axis varies fastest, so places alternate here."""
    text = "MESH dp 2, pp 2\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 2"
    assert ranks(plan_of, text) == [(0, 2), (1, 3)]


def test_another_route_makes_a_group(plan_of: PlanOf) -> None:
    """ON gives the first node a route of its own: its ranks send other messages."""
    text = "MESH dp 2, tp 8\nSPLIT heads OVER tp\nREDUCE grads OVER dp USING ring ON rank < 4 OR rank BETWEEN 8 AND 11"
    found = ranks(plan_of, text, devices=16, heads=8)
    assert found == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]


def test_another_device_makes_a_group(plan_of: PlanOf) -> None:
    """Old cards beside new ones have other memory and another rate."""
    found = ranks(plan_of, "MESH dp *", devices=128, on="64xA100+64xH100", batch=128)
    assert found == [tuple(range(64)), tuple(range(64, 128))]


def test_every_rank_stands_in_one_group(plan_of: PlanOf) -> None:
    """Sums over groups would count a rank twice, or never."""
    text = "MESH pp 2, dp 2, tp 2\nSPLIT heads OVER tp\nSPLIT layers OVER pp USING zbv MICROBATCHES 4"
    groups = ranks(plan_of, text, devices=8)
    assert sorted(rank for group in groups for rank in group) == list(range(8))
