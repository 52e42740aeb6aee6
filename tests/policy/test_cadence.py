import dataclasses
import math

import pytest

from trimtab.policy.cadence import (
    MAX_INTERVAL_S,
    MAX_STALL_FRACTION,
    SaveObservations,
    adaptive_interval_s,
    expected_save_s,
    hazard_per_s,
    mean_hazard_per_s,
    next_save,
    prior_mttf_s,
)

HOUR_S = 3600.0
CALM = SaveObservations(
    last_saved=0, step_s=1.0, stall_s=0.5, drain_s=5.0, running_s=0.0, prior_mttf_s=3 * HOUR_S
)


def _with(**changes):
    return dataclasses.replace(CALM, **changes)


def test_interval_is_youngs():
    """Another formula would lose more at every failure: the user chose this one by name."""
    assert adaptive_interval_s(CALM) == pytest.approx(math.sqrt(2 * 0.5 / hazard_per_s(CALM)))


def test_failures_come_sooner_after_a_failure():
    """Restarts fail early: twice the mean at first, at most; less than the mean once a run has lasted."""
    failed = {age: _with(running_s=1e6, failure_ages_s=[age]) for age in (0.0, 60.0, 1e5)}
    factors = {age: hazard_per_s(found) / mean_hazard_per_s(found) for age, found in failed.items()}
    assert factors[0.0] == 2.0
    assert factors[0.0] >= factors[60.0] > 1 > factors[1e5] >= 0.5


def test_a_hazard_is_that_of_its_law():
    """Weibull, shape 0.7, mean one: k G (a G)^(k - 1) at a = 1 is 0.825."""
    gamma = math.gamma(1 + 1 / 0.7)
    observed = _with(running_s=1e6, failure_ages_s=[3e4])
    age = mean_hazard_per_s(observed) * 3e4
    expected = 0.7 * gamma * (age * gamma) ** -0.3
    assert 0.5 < expected < 2
    assert hazard_per_s(observed) == pytest.approx(expected * mean_hazard_per_s(observed))


def test_more_nodes_fail_sooner_and_peers_make_most_of_it_good():
    """8 devices measured 47.7 days; 1,024 devices 7.9 hours."""
    alone = prior_mttf_s(1, survives_in_the_step=False)
    assert alone / 86_400 == pytest.approx(47.7, rel=0.06)
    assert prior_mttf_s(128, survives_in_the_step=False) / HOUR_S == pytest.approx(7.9, rel=0.1)
    assert prior_mttf_s(1, survives_in_the_step=True) == pytest.approx(10 * alone)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"drain_s": 500.0}, 500.0),  # the next save would find the last one still being written
        ({"stall_s": 100.0, "prior_mttf_s": 60.0}, 100.0 / MAX_STALL_FRACTION),
        ({"stall_s": 10.0, "prior_mttf_s": 1e9}, MAX_INTERVAL_S),
        ({"drain_s": 2 * MAX_INTERVAL_S}, 2 * MAX_INTERVAL_S),
        ({"stall_s": 0.0, "drain_s": 0.0}, 0.0),
    ],
)
def test_interval_stays_within_limits(changes, seconds):
    """Without limits a bad measurement would save all the time, or never."""
    assert adaptive_interval_s(_with(**changes)) == pytest.approx(seconds)


def test_hazard_learns_from_failures_and_from_calm():
    """A prior that is wrong by three times would stay wrong for the whole run."""
    assert mean_hazard_per_s(CALM) == pytest.approx(1 / CALM.prior_mttf_s)
    calm = mean_hazard_per_s(_with(running_s=24 * HOUR_S))
    failing = mean_hazard_per_s(_with(running_s=24 * HOUR_S, failure_ages_s=[HOUR_S * h for h in range(24)]))
    forgotten = mean_hazard_per_s(_with(running_s=24 * HOUR_S, failure_ages_s=[1000 * HOUR_S]))
    assert calm < mean_hazard_per_s(CALM) < failing
    assert forgotten == pytest.approx(calm)
    # one an hour for a day, with two at the prior's one in three hours: between the two, nearer the seen
    assert 1 / (2 * HOUR_S) < failing < 1 / HOUR_S


def test_interval_shrinks_with_hazard_and_grows_with_cost():
    """Monotone in both, or a worse machine would be saved less often."""
    costs = [adaptive_interval_s(_with(stall_s=c)) for c in (0.1, 0.5, 2.0)]
    hazards = [adaptive_interval_s(_with(failure_ages_s=[1.0] * n)) for n in (0, 1, 5)]
    assert costs == sorted(costs)
    assert hazards == sorted(hazards, reverse=True)


def test_adaptive_step_counts_from_the_last_save_and_says_why():
    """A decision without its figures cannot be checked by the user."""
    due = next_save("adaptive", _with(last_saved=40, step_s=0.5), finished=50)
    assert due.step == 40 + math.ceil(math.sqrt(2 * 0.5 * 1.5 * HOUR_S) / 0.5)
    assert due.reason == (
        "every 1 min 13 s (147 steps): a save stalls 500.00 ms and is durable after 5.00 s; "
        "a failure is expected every 1 h 30 min (0 seen in 0 us, 3 h 0 min assumed before)"
    )


def test_adaptive_never_means_every_zero_steps():
    """A free save would be due at the step it was made for, again and again."""
    assert next_save("adaptive", _with(stall_s=0.0, drain_s=0.0, last_saved=7), finished=7).step == 8


@pytest.mark.parametrize(("last_saved", "step"), [(0, 10), (10, 20), (13, 20), (19, 20), (20, 30)])
def test_fixed_cadence_keeps_to_multiples(last_saved, step):
    """A save at a stop signal (step 13) would shift every later one: runs could not be compared."""
    assert next_save(10, _with(last_saved=last_saved), finished=last_saved).step == step


def test_off_means_never_even_when_warned():
    """The user's word is final; a stop by hand still saves at the end."""
    assert next_save("off", _with(warning="preemption in 30 s"), finished=5).step is None


@pytest.mark.parametrize("every", [10, "adaptive"])
def test_warning_saves_now_but_not_the_same_step_twice(every):
    """A notice of preemption that waits for the next multiple loses everything since the last save."""
    due = next_save(every, _with(warning="preemption in 30 s"), finished=5)
    assert (due.step, due.reason) == (5, "now: preemption in 30 s")
    assert next_save(every, _with(warning="preemption in 30 s", last_saved=5), finished=5).step > 5


def test_expectation_before_the_first_save_is_that_of_the_measured_state():
    """A guess a thousand times off would decide the first, most needed, save."""
    stall_s, drain_s = expected_save_s(210_000_000)
    assert 0.022 <= stall_s <= 0.034
    assert 0.347 <= drain_s <= 0.6
