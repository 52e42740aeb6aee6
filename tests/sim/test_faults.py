from collections import Counter
from dataclasses import replace

import pytest

from trimtab.catalog.failures import failure_mixture
from trimtab.sim.faults import FaultKind, draw_faults

DAY_S = 86_400.0
MIXTURE = replace(failure_mixture("all-causes"), bursts=0.0)


def _draw(mixture=MIXTURE, *, num_nodes=128, days=400.0, seed=7):
    return draw_faults(mixture, num_nodes=num_nodes, horizon_s=days * DAY_S, seed=seed)


def test_as_many_come_as_the_rate_says():
    """Every figure of a simulation rests on the rate; 1,213 are expected, four deviations are allowed."""
    expected = 23.7 / 1000 * 128 * 400
    # A renewal process of this shape spreads by its gaps' variation, 1.46 times the root of the number.
    assert abs(len(_draw()) - expected) < 4 * 1.46 * expected**0.5


def test_the_same_seed_gives_the_same_faults():
    """Policies are compared under the same faults, and a result can be had again."""
    assert _draw(seed=1) == _draw(seed=1)
    assert _draw(seed=1) != _draw(seed=2)


def test_faults_come_in_order_and_within_the_time():
    """A run goes through them once."""
    times = [fault.at_s for fault in _draw()]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 400 * DAY_S


def test_few_nodes_bring_half_of_the_faults():
    """Lemons: 6 of 128 nodes bring half, and their part of the rest."""
    hits = Counter(fault.nodes[0] for fault in _draw() if fault.nodes)
    worst = sum(count for _, count in hits.most_common(6)) / hits.total()
    assert 0.45 < worst < 0.62


def test_a_burst_takes_neighbours_of_the_cluster():
    """Nodes of one rack fall together; none is counted that does not exist."""
    faults = _draw(replace(MIXTURE, bursts=1.0, burst_nodes=5), num_nodes=8)
    for fault in faults:
        if fault.kind is not FaultKind.STORAGE:
            assert list(fault.nodes) == list(range(fault.nodes[0], fault.nodes[0] + 5))
            assert fault.nodes[-1] < 8


def test_a_burst_is_no_larger_than_the_cluster():
    """A small cluster under the statistics of a large one."""
    faults = _draw(replace(MIXTURE, bursts=1.0, burst_nodes=5), num_nodes=3)
    assert {fault.nodes for fault in faults} <= {(0, 1, 2), ()}


def test_every_kind_comes_as_often_as_the_mixture_says():
    """A hang costs what a crash does not, and a corruption more."""
    kinds = Counter(fault.kind for fault in _draw(replace(MIXTURE, hangs=0.2, corruption=0.1, storage=0.3)))
    parts = {kind: kinds[kind] / kinds.total() for kind in FaultKind}
    assert parts == pytest.approx(
        {
            FaultKind.CRASH: 0.4,
            FaultKind.HANG: 0.2,
            FaultKind.CORRUPTION: 0.1,
            FaultKind.STORAGE: 0.3,
        },
        abs=0.06,
    )


def test_what_never_fails_gives_no_fault():
    """A rate of 0 is an answer, not a division."""
    assert _draw(replace(MIXTURE, per_1000_node_days=0.0)) == []
