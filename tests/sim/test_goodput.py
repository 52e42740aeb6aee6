"""Times are chosen so that every figure can be had by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.policy.recovery import WayBack
from trimtab.sim.cadences import Adaptive, Every
from trimtab.sim.faults import Fault, FaultKind
from trimtab.sim.goodput import RecoveryTimes, SimulatedRun, simulate
from trimtab.terms import LedgerClass, OnLoss

S = 10**9
TIMES = RecoveryTimes(
    crash_detect_s=10, hang_detect_s=60, corruption_detect_s=500, reform_s=5, snapshot_load_s=7, restart_s=300,
    join_s=20, repair_s=1_000,
)  # fmt: skip
RUN = SimulatedRun(
    step_s=10, num_nodes=4, num_spares=1, unit_nodes=1, num_shares=4, rule=OnLoss.REDO, stall_s=2, drain_s=30,
    times=TIMES,
)  # fmt: skip
ALONE = replace(RUN, rule=OnLoss.ROLLBACK, unit_nodes=4)
NEVER = Every(seconds=float("inf"))


def _crash(at_s, *nodes, kind=FaultKind.CRASH):
    return Fault(at_s=at_s, kind=kind, nodes=nodes)


def _simulate(run, *faults, cadence=NEVER, horizon_s=1_000.0):
    return simulate(run, faults, cadence, horizon_s=horizon_s)


def test_without_faults_only_saves_cost():
    """Nine saves of 2 s in 1,000 s: the tenth would begin at the end."""
    outcome = _simulate(RUN, cadence=Every(seconds=100))
    assert outcome.classes == {LedgerClass.USEFUL: 982 * S, LedgerClass.CHECKPOINT_STALL: 18 * S}
    assert (outcome.num_saves, outcome.work_ns, outcome.lost_ns) == (9, 982 * S, 0)
    assert outcome.goodput == 0.982


def test_survivors_do_the_step_again():
    """At 104 s the step has gone on for 4 s. Found after 10 s, formed anew in 5; three of four compute four shares in twice
    the time, for the 5 s until the spare node has the state; it joins in 5 s more.
    """
    outcome = _simulate(RUN, _crash(104, 2))
    assert outcome.lost_ns == 4 * S
    assert outcome.ways[WayBack.REDO] == 1
    assert outcome.classes[LedgerClass.DETECT] == 10 * S
    assert outcome.classes[LedgerClass.RESTART] == (5 + 5) * S
    assert outcome.classes[LedgerClass.DEGRADED] == 2.5 * S
    assert outcome.work_ns == (1_000 - 10 - 10 - 2.5 - 4) * S


def test_exactly_only_the_lost_shares_are_computed_again():
    """A quarter of the 4 s that the step had gone on."""
    assert _simulate(replace(RUN, rule=OnLoss.EXACT), _crash(104, 2)).lost_ns == 1 * S


def test_a_lost_state_is_read_from_the_newest_checkpoint():
    """Saved at 100 s, durable at 132; lost at 150: 48 s of work. 10 s to find out, 300 to start again."""
    outcome = _simulate(ALONE, _crash(150, 0), cadence=Every(seconds=100), horizon_s=500.0)
    assert outcome.lost_ns == 48 * S
    assert outcome.classes[LedgerClass.RESTART] == 300 * S
    assert outcome.ways[WayBack.CHECKPOINT] == 1


def test_a_save_that_is_not_durable_is_no_checkpoint():
    """Saved at 100 s, lost at 120 with the processes that wrote it: all work since the start."""
    assert _simulate(ALONE, _crash(120, 0), cadence=Every(seconds=100), horizon_s=400.0).lost_ns == 118 * S


def test_storage_that_fails_costs_the_save_alone():
    """The run goes on; what was saved at 100 s is not there at 150."""
    broken = _crash(110, kind=FaultKind.STORAGE)
    outcome = _simulate(ALONE, broken, _crash(150, 0), cadence=Every(seconds=100), horizon_s=480.0)
    assert outcome.lost_ns == 148 * S
    assert outcome.classes[LedgerClass.RESTART] == 300 * S


def test_buddies_hold_what_is_lost():
    """A snapshot every 40 s that costs 1: at 150 s, 3.75 of them were paid; the last one was 26 1/4 s of work ago."""
    kept = replace(ALONE, snapshot_every_s=40.0, snapshot_stall_s=1.0)
    outcome = _simulate(kept, _crash(150, 0))
    assert outcome.ways[WayBack.SNAPSHOT] == 1
    assert outcome.lost_ns == 26.25 * S
    assert outcome.classes[LedgerClass.RESTART] == (5 + 7 + 5) * S


def test_a_node_and_its_buddy_are_a_checkpoint_matter():
    """Nodes 0 and 2 of four keep each other's snapshots."""
    kept = replace(ALONE, num_spares=2, snapshot_every_s=40.0, snapshot_stall_s=1.0)
    assert _simulate(kept, _crash(150, 0, 2)).ways[WayBack.CHECKPOINT] == 1
    assert _simulate(kept, _crash(150, 0, 1)).ways[WayBack.SNAPSHOT] == 1


def test_wrong_numbers_are_trained_on_until_they_are_noticed():
    """Spoilt at 250 s, noticed at 750: back to the 200 s that were saved at 202; the saves of between are spoilt too."""
    outcome = _simulate(
        RUN, _crash(250, 1, kind=FaultKind.CORRUPTION), cadence=Every(seconds=100), horizon_s=900.0
    )
    assert outcome.ways[WayBack.CHECKPOINT] == 1
    assert outcome.lost_ns + outcome.work_ns == outcome.classes[LedgerClass.USEFUL]
    assert outcome.work_ns == 200 * S, "150 s after it was noticed the run is still starting again"


def test_nodes_that_are_left_over_belong_to_the_last_group():
    """Five nodes in groups of two: the fifth takes one group of the two down, and not two."""
    outcome = _simulate(
        replace(RUN, num_nodes=5, num_spares=0, unit_nodes=2), _crash(104, 4, 3), horizon_s=500.0
    )
    assert outcome.ways[WayBack.REDO] == 1
    assert outcome.events[0].what.endswith("1 groups of living ranks hold the whole state")


def test_a_hang_is_found_by_its_deadline():
    """Nothing says that a rank has stopped."""
    assert _simulate(RUN, _crash(104, 2, kind=FaultKind.HANG)).classes[LedgerClass.DETECT] == 60 * S


def test_without_spares_all_wait_for_the_repair():
    """Four seats, three nodes: a run that is started again needs them all. Repaired 1,000 s later, seated 20 s after that."""
    outcome = _simulate(replace(ALONE, num_spares=0), _crash(100, 0), horizon_s=2_000.0)
    assert outcome.classes[LedgerClass.QUEUE_IDLE] == (1_000 + 20 - 310) * S
    assert outcome.work_ns == (2_000 - 1_120) * S


def test_without_spares_survivors_go_on_slower():
    """Two shares on one of three: half the speed for 1,005 s, from 115 s until 1,120."""
    outcome = _simulate(replace(RUN, num_spares=0), _crash(100, 0), horizon_s=2_000.0)
    assert outcome.classes[LedgerClass.DEGRADED] == 502.5 * S
    assert LedgerClass.QUEUE_IDLE not in outcome.classes


def test_more_shares_than_units_cost_less_when_one_is_lost():
    """12 shares on three instead of four: four each instead of three."""
    outcome = _simulate(replace(RUN, num_spares=0, num_shares=12), _crash(100, 0), horizon_s=2_000.0)
    assert outcome.classes[LedgerClass.DEGRADED] == 1_005 * S // 4


def test_a_fault_during_a_recovery_begins_it_anew():
    """Lost at 100 and at 200 s, in the middle of the restart: found again, started again."""
    outcome = _simulate(replace(ALONE, num_spares=2), _crash(100, 0), _crash(200, 1))
    assert outcome.classes[LedgerClass.DETECT] == 20 * S
    assert outcome.classes[LedgerClass.RESTART] == (90 + 300) * S


def test_a_node_that_sits_nowhere_harms_nobody():
    """A spare one that fails, and one that failed before it was repaired."""
    assert _simulate(RUN, _crash(104, 4)).goodput == 1
    once = _simulate(RUN, _crash(104, 2))
    assert _simulate(RUN, _crash(104, 2), _crash(500, 2)).classes == once.classes


def test_everything_that_happened_is_told():
    """The list is for whoever does not believe the figure."""
    events = _simulate(RUN, _crash(104, 2)).events
    assert [(event.at_s, event.what, event.lost_s) for event in events] == [
        (104.0, "crash of node 2: redo, for 3 groups of living ranks hold the whole state", 4.0),
        (124.0, "nodes joined", 0.0),
    ]


_FAULTS = st.lists(
    st.builds(
        Fault,
        at_s=st.floats(0, 3_000),
        kind=st.sampled_from(FaultKind),
        nodes=st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True).map(tuple),
    ),
    max_size=8,
)


@given(
    faults=_FAULTS,
    rule=st.sampled_from([OnLoss.EXACT, OnLoss.REDO, OnLoss.SAME_BATCH, OnLoss.ROLLBACK]),
    unit_nodes=st.sampled_from([1, 2, 4]),
    num_spares=st.integers(0, 2),
    snapshot_every_s=st.sampled_from([None, 50.0]),
    cadence=st.sampled_from([NEVER, Every(seconds=90), Adaptive(prior_mttf_s=1_000)]),
)
def test_every_nanosecond_has_one_class(faults, rule, unit_nodes, num_spares, snapshot_every_s, cadence):
    """The identity of the ledger, whatever fails when; and what was worked either stands or was lost."""
    run = replace(
        RUN, rule=rule, unit_nodes=unit_nodes, num_spares=num_spares, snapshot_every_s=snapshot_every_s,
        snapshot_stall_s=1.0 if snapshot_every_s else 0.0,
    )  # fmt: skip
    outcome = _simulate(
        run, *sorted(faults, key=lambda fault: fault.at_s), cadence=cadence, horizon_s=4_000.0
    )
    assert sum(outcome.classes.values()) == outcome.elapsed_ns == 4_000 * S
    assert outcome.work_ns + outcome.lost_ns == outcome.classes.get(LedgerClass.USEFUL, 0)
    assert all(ns >= 0 for ns in outcome.classes.values())
    assert outcome.work_ns >= 0


@pytest.mark.parametrize("rule", [OnLoss.EXACT, OnLoss.ROLLBACK])
def test_a_fault_never_helps(rule):
    """More faults, less work, or the model is wrong."""
    faults = [_crash(at_s, at_s % 4) for at_s in range(150, 900, 150)]
    run = replace(RUN, rule=rule, unit_nodes=1 if rule is OnLoss.EXACT else 4, num_spares=2)
    work = [_simulate(run, *faults[:count], cadence=Every(seconds=100)).work_ns for count in range(6)]
    assert work == sorted(work, reverse=True)
    assert work[0] > work[-1]
