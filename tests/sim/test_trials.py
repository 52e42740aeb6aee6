from dataclasses import replace

import pytest

from trimtab.catalog.failures import failure_mixture
from trimtab.sim.cadences import Adaptive, Every
from trimtab.sim.goodput import SimulatedRun
from trimtab.sim.trials import Policy, paired_difference, spread, try_policies
from trimtab.terms import OnLoss

RUN = SimulatedRun(
    step_s=10, num_nodes=32, num_spares=1, unit_nodes=32, num_shares=0, rule=OnLoss.ROLLBACK, stall_s=2, drain_s=30
)  # fmt: skip
MIXTURE = failure_mixture("all-causes")


def test_policies_meet_the_same_faults():
    """Otherwise a difference could be luck."""
    policies = {name: Policy(run=RUN, cadence=Every(seconds=900)) for name in ("one", "other")}
    found = try_policies(policies, MIXTURE, horizon_s=86_400.0 * 10, seeds=range(3))
    assert found["one"] == found["other"]
    assert len({outcome.events for outcome in found["one"]}) == 3, "seeds differ"


def test_policies_of_two_clusters_are_not_compared():
    """They would meet other faults."""
    policies = {
        "one": Policy(run=RUN, cadence=Every(seconds=900)),
        "other": Policy(run=replace(RUN, num_spares=2), cadence=Every(seconds=900)),
    }
    with pytest.raises(AssertionError, match="one cluster"):
        try_policies(policies, MIXTURE, horizon_s=86_400.0, seeds=[0])


def test_each_trial_is_told():
    """Somebody waits."""
    told = []
    policies = {"one": Policy(run=RUN, cadence=Adaptive(prior_mttf_s=1e5))}
    try_policies(policies, MIXTURE, horizon_s=86_400.0, seeds=[4, 5], on_trial=lambda: told.append(1))
    assert len(told) == 2


def test_a_spread_is_the_middle_and_nine_of_ten():
    """Of 0 to 100 the bounds are 5 and 95."""
    found = spread([float(value) for value in reversed(range(101))])
    assert (found.low, found.median, found.high) == (5, 50, 95)


def test_a_difference_is_sure_where_every_pair_says_the_same():
    """Pairs that all differ by one differ by one, whatever they are."""
    found = paired_difference([2.0, 5.0, 9.0], [1.0, 4.0, 8.0])
    assert (found.low, found.mean, found.high) == (1.0, 1.0, 1.0)


def test_a_difference_is_unsure_where_pairs_disagree():
    """Its bounds lie on both sides of none."""
    found = paired_difference([1.0, -1.0] * 10, [0.0] * 20)
    assert found.low < -0.2 < found.mean == 0.0 < 0.2 < found.high
