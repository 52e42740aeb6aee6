"""Leases, devices and budgets of a tuning."""

from dataclasses import replace

import pytest

from trimtab.policy.trials import (
    Ask,
    Finish,
    Take,
    Trial,
    TrialBudget,
    TrialState,
    Wait,
    lost_trials,
    may_end,
    next_move,
)

BUDGET = TrialBudget(trials=4, devices=3)
RUNNING = Trial(
    number=0, state=TrialState.RUNNING, devices=2, owner="a", lease_until_s=10.0, attempts=1, spent_s=0.0
)
DONE = Trial(number=1, state=TrialState.DONE, devices=2, attempts=1, spent_s=60.0, spent_usd=2.0)


def test_a_free_pool_gets_a_new_trial() -> None:
    assert next_move([], BUDGET, devices=2) == Ask()


def test_a_trial_gets_all_its_devices_or_none() -> None:
    """With devices for one trial and a half, two workers that each held some would wait for each other for ever."""
    move = next_move([RUNNING], BUDGET, devices=2)
    assert move == Wait(reason="a trial takes 2 devices, and 1 of 3 are free")


def test_a_trial_that_never_fits_the_pool_ends_the_tuning_with_the_reason() -> None:
    assert next_move([], BUDGET, devices=4) == Finish(reason="a trial takes 4 devices, and there are 3")


@pytest.mark.parametrize(
    ("now_s", "gone", "lost"), [(9.0, {"b"}, False), (10.5, set(), True), (9.0, {"a"}, True)]
)
def test_a_trial_is_lost_with_its_lease_or_its_owner(now_s: float, gone: set[str], lost: bool) -> None:
    """A trial of a dead worker that stayed running would hold its devices and its share of the budget for ever."""
    found = lost_trials([RUNNING], gone=frozenset(gone), now_s=now_s)
    assert [trial.state for trial in found] == ([TrialState.WAITING] if lost else [])


def test_a_trial_whose_processes_live_is_not_made_a_second_time() -> None:
    """Its worker may be stopped or gone: the devices are not free."""
    assert lost_trials([RUNNING], gone=frozenset({"a"}), at_work=frozenset({0}), now_s=99.0) == []


def test_a_lost_trial_is_taken_up_before_a_new_one_is_asked_for() -> None:
    (waiting,) = lost_trials([RUNNING], gone=frozenset(), now_s=11.0)
    assert waiting.owner is None
    assert next_move([waiting, DONE], BUDGET, devices=2) == Take(number=0)


def test_a_trial_that_lost_three_workers_is_failed_and_not_made_for_ever() -> None:
    (ended,) = lost_trials([replace(RUNNING, attempts=3)], gone=frozenset({"a"}), now_s=0.0)
    assert ended.state is TrialState.FAILED


def test_the_budget_counts_trials_and_not_attempts() -> None:
    ended = [replace(DONE, number=number, attempts=number + 1) for number in range(4)]
    assert next_move(ended[:3], BUDGET, devices=2) == Ask()
    assert next_move(ended, BUDGET, devices=2) == Finish(reason="the budget of 4 trials")
    move = next_move([*ended[:3], replace(RUNNING, number=3)], BUDGET, devices=1)
    assert move == Wait(reason="the budget of 4 trials; 1 still running")


@pytest.mark.parametrize(
    ("budget", "goes_on"),
    [
        (replace(BUDGET, seconds=121.0), True),
        (replace(BUDGET, seconds=119.0), False),
        (replace(BUDGET, seconds=121.0, reserved=1), False),
        (replace(BUDGET, usd=4.1), True),
        (replace(BUDGET, usd=3.9), False),
    ],
)
def test_a_trial_that_would_exceed_time_or_dollars_is_not_begun(budget: TrialBudget, goes_on: bool) -> None:
    move = next_move([DONE], budget, devices=1)
    assert isinstance(move, Ask if goes_on else Finish)


def test_what_runs_counts_as_spent_before_it_ends() -> None:
    """Two workers that each saw room for one more trial would spend twice what is left."""
    assert isinstance(next_move([DONE, RUNNING], replace(BUDGET, usd=5.0), devices=1), Wait)


def test_a_late_word_counts_until_the_trial_has_ended() -> None:
    """The result of a good trial would be thrown away because its worker was slow for a moment."""
    (waiting,) = lost_trials([RUNNING], gone=frozenset(), now_s=11.0)
    assert may_end(waiting)
    assert may_end(replace(RUNNING, owner="b"))
    assert not may_end(DONE)
