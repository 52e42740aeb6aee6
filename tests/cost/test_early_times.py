from dataclasses import replace

import pytest

from tests.plan.conftest import MACHINE, PlanOf
from trimtab.catalog import cluster
from trimtab.cost.communication import collective_time
from trimtab.cost.counts import counts_of
from trimtab.cost.early_memory import EarlyMemory
from trimtab.cost.early_times import update_communication
from trimtab.cost.stage_times import Passes, PassSeconds, stage_passes
from trimtab.plan.early_sums import early_sums
from trimtab.plan.lifetimes import sums_in_place
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import Action, ActionKind
from trimtab.plan.program import OperatorKind, Phase

HERE = cluster("512xH100", machine=MACHINE)
BUCKETS = "MESH dp *\nREDUCE grads OVER dp BUCKET 100MB"
ACTIONS = [Action(kind=kind, stage=0, microbatch=0) for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)]


@pytest.fixture
def plan(plan_of: PlanOf) -> Plan:
    return plan_of(BUCKETS, model="llama2-7b", devices=8, batch=8, sequence=2048, compute="bf16")


def times(plan: Plan, factor: float) -> tuple[float, float]:
    """Waited for and hidden, where computing takes so much of the time that it does."""
    counts = counts_of(plan)
    found = stage_passes(plan, counts, HERE)
    assert found is not None

    def scaled(part: PassSeconds) -> PassSeconds:
        return replace(part, compute_s=part.compute_s * factor, exposed_s=0.0, recompute_s=0.0)

    passes = [
        Passes(
            forward=scaled(each.forward),
            backward_input=scaled(each.backward_input),
            backward_weight=scaled(each.backward_weight),
        )
        for each in found
    ]
    return update_communication(plan, counts, 0, HERE, passes)


def test_what_is_waited_for_and_what_is_hidden_is_all_that_is_sent(plan: Plan) -> None:
    """A bucket that counted in both, or in neither, would make the step too long or too short."""
    each = {
        use.traffic.operator.outputs: collective_time(use, HERE).seconds
        for use in counts_of(plan).uses[0]
        if use.traffic.phase is Phase.UPDATE
    }
    for factor in (0.0, 0.01, 1.0, 100.0):
        waited, hidden = times(plan, factor)
        assert waited + hidden == pytest.approx(sum(each.values()))
    # An embedding computes next to nothing: what is complete after the first layer is waited for.
    early = {one.operator.outputs for one in early_sums(plan, ACTIONS) if one.after > 1}
    placed = sum(seconds for name, seconds in each.items() if name not in early)
    assert times(plan, 0.0) == (pytest.approx(sum(each.values())), pytest.approx(0.0))
    assert times(plan, 100.0) == (pytest.approx(placed), pytest.approx(sum(each.values()) - placed))


def test_a_slower_backward_pass_hides_more(plan: Plan) -> None:
    """Whoever computes longer waits less for the same bytes."""
    waits = [times(plan, factor)[0] for factor in (0.0, 0.02, 0.1, 1.0)]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > waits[-1]


def test_what_is_at_work_beside_the_backward_pass_needs_memory(plan_of: PlanOf) -> None:
    """Pieces live from the start of their sum on, and what is sent is packed."""
    plan = plan_of("MESH dp 4\nSTORE states OVER dp\nREDUCE grads OVER dp BUCKET 1MB", tied=False)
    memory = EarlyMemory(plan, ACTIONS, sums_in_place(plan.update))
    sums = [early.operator for early in early_sums(plan, ACTIONS)]
    assert {operator.kind for operator in sums} == {OperatorKind.REDUCE_SCATTER}
    blocks = range(1 + len(plan.pipeline.stage_of_layer), -1, -1)
    needs = [memory.leave(block, ACTIONS[1]) for block in blocks]
    assert needs[-1] is None
    assert max(found for found in needs if found) == max(memory.count.of(found).scratch for found in sums)
    assert memory.started == sums
    assert all(memory.is_started(operator) for operator in sums)
    assert memory.made == sum(memory.count.size(name) for operator in sums for name in operator.outputs)
