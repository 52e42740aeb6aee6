"""Bytes by level of link, against a count over every message of every rank."""

import pytest

from tests.plan.conftest import PlanOf
from trimtab.catalog import Level
from trimtab.plan.explanation import LevelBytes, collective_uses, rank_groups, sent_in_step
from trimtab.plan.physical import Plan

PLANS = {
    "ring over nodes": ("MESH dp *\nREDUCE grads OVER dp USING ring", {}),
    "tree over nodes": ("MESH dp *\nREDUCE grads OVER dp USING tree", {}),
    "hierarchical": ("MESH dp *\nREDUCE grads OVER dp USING hierarchical(node)", {}),
    "stored": ("STORE params, grads, states OVER dp", {}),
    "across the border": ("MESH tp 2, dp 8\nSPLIT heads, mlp, vocab OVER tp", {}),
    "pipeline": (
        "MESH pp 2, dp 4, tp 2\nSPLIT heads, mlp, vocab OVER tp\n"
        "SPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 4",
        {"batch": 64},
    ),
    "v": ("MESH dp 8, pp 2\nSPLIT layers OVER pp USING zbv MICROBATCHES 4", {"batch": 64}),
    "two routes": (
        "MESH dp 8, tp 2\nSPLIT heads OVER tp\nREDUCE grads OVER dp USING tree ON rank % 2 = 0",
        {},
    ),
    "tied on two stages": ("MESH pp 4, dp 4\nSPLIT layers OVER pp USING gpipe MICROBATCHES 2", {}),
    "local steps": (
        "MESH site 2, dp 8\nSPLIT batch OVER site, dp\nAVERAGE params OVER site EVERY 8 STEPS",
        {},
    ),
}


def counted(plan: Plan) -> LevelBytes:
    """What all ranks send in a step, message by message."""
    nodes = [device.node for device in plan.bound.devices]
    sent = dict.fromkeys(Level, 0.0)
    place_of = {rank: group.place for group in rank_groups(plan) for rank in group.ranks}
    for traffic in plan.traffic:
        for rank in sorted({rank for group in traffic.groups for rank in group}):
            runs = traffic.runs.get(place_of[rank], 0.0)
            for target, size in traffic.messages_of(rank):
                level = Level.NODE if nodes[rank] == nodes[target] else Level.SITE
                sent[level] += runs * size
    return LevelBytes(round(sent[Level.NODE]), round(sent[Level.SITE]))


@pytest.mark.parametrize("name", PLANS)
def test_levels_add_up_to_every_message(name: str, plan_of: PlanOf) -> None:
    """A byte that is counted at the wrong level hides the slow link."""
    text, options = PLANS[name]
    plan = plan_of(text, devices=16, **options)
    uses = collective_uses(plan, rank_groups(plan))
    found = sent_in_step(use for group in uses for use in group)
    expected = counted(plan)
    # Collectives that run every few steps are rounded one by one.
    assert abs(found.node - expected.node) <= len(plan.traffic)
    assert abs(found.site - expected.site) <= len(plan.traffic)
    assert found.total > 0


def test_the_most_of_a_rank_is_that_of_one_rank(plan_of: PlanOf) -> None:
    """In a ring over two nodes of 8, one rank of each node sends over the border, the others stay inside."""
    plan = plan_of("MESH dp *\nREDUCE grads OVER dp USING ring", devices=16)
    (uses,) = collective_uses(plan, rank_groups(plan))
    (use,) = (use for use in uses if use.traffic.transfer.route == "ring")
    one = use.traffic.sent_bytes(0)
    assert use.most == LevelBytes(one, one)
    assert use.total == LevelBytes(14 * one, 2 * one)
    assert use.num_groups == 1


def test_a_hand_over_stands_with_its_sender(plan_of: PlanOf) -> None:
    """Counted with the receiver too, the pipeline would send twice."""
    plan = plan_of("MESH pp 2, dp 2\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 4")
    first, last = collective_uses(plan, rank_groups(plan))
    phases = [
        [use.traffic.phase.value for use in uses if use.traffic.block == "pipeline"] for uses in (first, last)
    ]
    assert phases == [["forward"], ["backward"]]


def test_hand_overs_of_several_stages_to_one_rank_are_one(plan_of: PlanOf) -> None:
    """Two chunks a rank: twice as many runs, told once."""
    text = "MESH pp 2, dp 2\nSPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 4"
    plan = plan_of(text)
    first, _ = collective_uses(plan, rank_groups(plan))
    sends = [use for use in first if use.traffic.block == "pipeline"]
    assert [(use.traffic.phase.value, use.runs) for use in sends] == [
        ("forward", 2 * plan.work.microbatches),
        ("backward", plan.work.microbatches),
    ]
