"""In which order do the blocks of a rank run, and whose parameters can come ahead?"""

from tests.plan.conftest import PlanOf
from tests.plan.test_early_sums import actions_at
from trimtab.plan.gathers_ahead import block_at, block_runs, is_gathered_ahead
from trimtab.plan.program import Phase

STORED = "STORE params, grads, states OVER dp"


def test_blocks_run_forwards_and_back_once_a_microbatch(plan_of: PlanOf) -> None:
    """Ranks that did not agree on the order would gather other layers from each other."""
    plan = plan_of(f"MESH dp 2\n{STORED}", devices=2, layers=2, batch=4, microbatch=1)
    runs = block_runs(plan, actions_at(plan, 0))
    once = [(0, Phase.FORWARD), (1, Phase.FORWARD), (2, Phase.FORWARD), (3, Phase.FORWARD)]
    once += [(block, Phase.BACKWARD) for block, _ in reversed(once)]
    assert [(run.block, run.phase) for run in runs] == once * plan.work.microbatches
    assert block_at(plan, 0).name == "embedding"
    assert block_at(plan, 3).name == "head"
    assert block_at(plan, 1).layers == block_at(plan, 2).layers == (0, 1)


def test_only_what_is_stored_comes_ahead(plan_of: PlanOf) -> None:
    """A layer that every rank holds whole has nothing to wait for."""
    plan = plan_of("MESH dp 2\nSTORE params, grads, states WHERE layer < 2 OVER dp", devices=2, layers=4)
    assert [is_gathered_ahead(block_at(plan, number)) for number in range(6)] == [
        False,
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_rank_runs_the_blocks_of_its_stages(plan_of: PlanOf) -> None:
    """One stage's gathers are not another's."""
    plan = plan_of(f"MESH pp 2, dp 2\nSPLIT layers OVER pp MICROBATCHES 4\n{STORED}", layers=4)
    blocks = [{run.block for run in block_runs(plan, actions_at(plan, place))} for place in (0, 1)]
    assert blocks == [{0, 1, 2}, {3, 4, 5}]
