"""Faults of a trial are drawn from a seed, and what came of it is held against what must come."""

from collections import Counter
from dataclasses import replace

import pytest

from trimtab.sim.chaos import Observed, Strike, Trial, draw_trial, judge
from trimtab.spec.injections import FaultKind, parse_injections
from trimtab.spec.scenarios import AgentFault, Expectation, Scenario
from trimtab.terms import Phase, RunState

SHA = "a" * 64
CAME = Observed(
    state=RunState.DONE,
    weights_sha256=SHA,
    num_struck=1,
    ledger={"allocated_ns": 10, "classes": {"useful": 7, "restart": 3}},
)


def scenario(*faults: dict[str, object]) -> Scenario:
    return Scenario.model_validate({"scenario": "s", "workload": "job.yaml", "faults": faults})


def drawn(seed: int, *faults: dict[str, object], devices: int = 4) -> Trial:
    return draw_trial(scenario(*faults), seed=seed, devices=devices)


ANY = {"kind": ("kill", "stop"), "step": {"between": (2, 9)}, "phase": ("compute", "reduce"), "times": 3}


def test_the_same_seed_draws_the_same_faults() -> None:
    """A soak that found something at night is repeated in the morning."""
    assert drawn(7, ANY) == drawn(7, ANY)
    assert len({drawn(seed, ANY) for seed in range(20)}) > 15


def test_what_is_drawn_lies_where_the_file_says() -> None:
    """And every value comes up: a distribution that forgets its end never tests it."""
    faults = [fault for seed in range(400) for fault in drawn(seed, ANY).injections]
    assert {fault.step for fault in faults} == set(range(2, 10))
    assert {fault.rank for fault in faults} == {0, 1, 2, 3}
    assert {fault.phase for fault in faults} == {Phase.COMPUTE, Phase.REDUCE}
    assert {fault.kind for fault in faults} == {FaultKind.KILL, FaultKind.STOP}


def test_what_is_drawn_is_what_the_run_is_told() -> None:
    """A fault that the run knows under another name would count as one that never struck."""
    kinds = (
        {"kind": kind, "step": 9} for kind in ("kill", "nan", "slow", "sleep", "disk-full", "torn-checkpoint")
    )
    told = [fault for fault in kinds for _ in range(3)]
    for seed in range(20):
        faults = drawn(seed, *told).injections
        again = parse_injections([fault.text for fault in faults], devices=4)
        assert [fault.mark for fault in faults] == [fault.mark for fault in again]


def test_no_fault_is_drawn_twice() -> None:
    """It would strike once, and count as one that did not."""
    narrow = {"kind": "kill", "rank": (0, 1), "step": 3, "times": 9}
    for seed in range(50):
        marks = Counter(fault.mark for fault in drawn(seed, narrow).injections)
        assert set(marks.values()) == {1}


def test_numbers_of_faults_follow_their_distribution() -> None:
    """Poisson of mean 2: the mean of 2,000 lies within four deviations."""
    agents = {"kind": "kill-agent", "step": 3, "times": {"poisson": 2.0}}
    numbers = [len(drawn(seed, agents).strikes) for seed in range(2000)]
    assert abs(sum(numbers) / 2000 - 2.0) < 4 * (2.0 / 2000) ** 0.5
    assert {0, 1, 2, 3, 4, 5} <= set(numbers)
    uniform = {"kind": "kill-agent", "step": 3, "times": {"between": (1, 3)}}
    assert {len(drawn(seed, uniform).strikes) for seed in range(50)} == {1, 2, 3}


def test_times_follow_their_distribution() -> None:
    """An exponential time of mean 4 s has that mean within four deviations."""
    late = {"kind": "kill", "after": {"exponential": 4.0}}
    times = [drawn(seed, late).strikes[0].after_s or 0.0 for seed in range(2000)]
    assert abs(sum(times) / 2000 - 4.0) < 4 * 4.0 / 2000**0.5
    within = {"kind": "kill", "after": {"between": (1.0, 2.0)}}
    assert all(1.0 <= (drawn(seed, within).strikes[0].after_s or 0.0) <= 2.0 for seed in range(50))


def test_signals_from_outside_are_told_from_planted_faults() -> None:
    """A rank strikes itself in a phase; a time, and the agent, are struck from outside, in order."""
    trial = drawn(
        0,
        {"kind": "kill", "rank": 1, "step": 5},
        {"kind": "stop-run", "step": 9, "devices": 2},
        {"kind": "kill-agent", "step": 3},
        {"kind": "stop", "rank": 2, "after": 1.5},
        {"kind": "slow", "rank": 0, "factor": 3.0},
    )
    assert [fault.kind for fault in trial.injections] == [FaultKind.KILL, FaultKind.SLOW]
    assert trial.strikes == (
        Strike(kind=FaultKind.STOP, rank=2, after_s=1.5),
        Strike(kind=AgentFault.KILL_AGENT, step=3),
        Strike(kind=AgentFault.STOP_RUN, step=9, devices=2),
    )
    assert trial.texts[-1] == "stop-run at step 9, resume on 2"
    assert trial.num_faults == 5


@pytest.mark.parametrize(
    ("expect", "changes", "words"),
    [
        ({}, {"weights_sha256": "b" * 64}, "the weights are bbbbbbbbbbbb"),
        (
            {},
            {"state": RunState.FAILED, "error": "rank 1 died"},
            "ended as failed, it must be done: rank 1 died",
        ),
        ({}, {"state": RunState.RUNNING, "error": "still at work"}, "still at work"),
        ({}, {"num_struck": 0}, "nothing is shown"),
        ({"struck": 2}, {}, "at least 2 must"),
        ({"rollback": 0}, {"steps_lost": (0, 3)}, "back by 3 steps, at most 0"),
        ({"error": "budget"}, {}, "must fail with 'budget'"),
        ({"error": "budget"}, {"state": RunState.FAILED, "error": "disk"}, "does not hold 'budget'"),
        ({}, {"ledger": {"allocated_ns": 11, "classes": {"useful": 10}}}, "add up to 10 ns of 11 ns"),
        ({}, {"ledger": {}}, "no ledger"),
        ({}, {"leftovers": ("process 7",)}, "left over: process 7"),
    ],
)
def test_what_is_otherwise_is_named(
    expect: dict[str, object], changes: dict[str, object], words: str
) -> None:
    """Whoever reads the line must know what broke."""
    came = replace(CAME, **changes)  # type: ignore[arg-type]  # each row names fields of its type
    verdict = judge(Expectation.model_validate(expect), came, undisturbed_sha256=SHA)
    assert not verdict.holds
    assert any(words in sentence for sentence in verdict.broken)
    assert verdict.is_as_expected == ("left" in words or "ledger" in words or "add up" in words)


@pytest.mark.parametrize(
    ("expect", "changes"),
    [
        ({}, {}),
        ({"rollback": 3}, {"steps_lost": (3, 0)}),
        ({"bits": "free"}, {"weights_sha256": "b" * 64}),
        ({"error": "budget"}, {"state": RunState.FAILED, "error": "over the budget", "weights_sha256": None}),
    ],
)
def test_what_is_as_it_must_be_holds(expect: dict[str, object], changes: dict[str, object]) -> None:
    """A verdict that never holds would be as useless as one that always does."""
    came = replace(CAME, **changes)  # type: ignore[arg-type]  # each row names fields of its type
    assert judge(Expectation.model_validate(expect), came, undisturbed_sha256=SHA).holds
