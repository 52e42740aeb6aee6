"""What the next trial is, asked and told."""

import math
import random
from collections.abc import Mapping
from statistics import median

import pytest

from trimtab.cost.search.tuning import (
    Category,
    Numbers,
    Range,
    Seen,
    Space,
    Told,
    Value,
    is_behind,
    propose,
)

RATES = tuple(1e-4 * 1.5**power for power in range(12))
BATCHES = (8, 16, 32, 64, 128, 256)
GRID = Space(knobs={"lr": Numbers(values=RATES), "batch": Numbers(values=BATCHES)})


def bowl(params: Mapping[str, Value]) -> float:
    """A loss with its least value in the middle, and a slope that ties both knobs."""
    lr, batch = math.log(float(params["lr"]) / 2e-3), math.log(float(params["batch"]) / 64)
    return 2.0 + 0.1 * (lr - 0.5 * batch) ** 2 + 0.03 * batch**2


def searched(space: Space, *, trials: int, seed: int) -> list[Told]:
    told: list[Told] = []
    for _ in range(trials):
        params = propose(space, told, num_objectives=1, seed=seed)
        if params is None:
            break
        told.append(Told(params=params, seen=Seen.DONE, values=(bowl(params),)))
    return told


def test_the_search_finds_what_random_search_does_not() -> None:
    """Real runs would be paid for, and chosen no better than by throwing dice."""
    best = min(bowl(point) for point in GRID.points())
    found = [
        min(trial.values[0] for trial in searched(GRID, trials=24, seed=seed)) - best for seed in range(6)
    ]
    points = list(GRID.points())
    drawn = [
        min(bowl(point) for point in random.Random(seed).sample(points, 24)) - best for seed in range(60)
    ]
    assert median(found) <= 0.25 * median(drawn)
    assert sum(found) / len(found) <= 0.5 * sum(drawn) / len(drawn)


def test_no_trial_is_made_twice_and_the_end_is_told() -> None:
    small = Space(knobs={"batch": Numbers(values=(1, 2, 4)), "route": Category(values=("ring", "tree"))})
    told: list[Told] = []
    for _ in range(10):
        params = propose(small, told, num_objectives=1, seed=0)
        if params is None:
            break
        told.append(Told(params=params, seen=Seen.DONE, values=(float(len(told)),)))
    keys = [tuple(sorted(trial.params.items())) for trial in told]
    assert len(set(keys)) == len(keys) == small.num_points == 6


def test_seeds_come_first_and_those_that_cannot_run_are_passed_over() -> None:
    """The job as it is must be measured, or nobody knows what was gained."""
    seeds = [{"lr": RATES[3], "batch": 8}, {"lr": RATES[4], "batch": 16}, {"lr": RATES[5], "batch": 32}]
    space = Space(knobs=GRID.knobs, seeds=seeds)
    told: list[Told] = []
    for _ in range(3):
        params = propose(space, told, num_objectives=1, seed=0, allowed=lambda params: params["batch"] != 16)
        assert params is not None
        told.append(Told(params=params, seen=Seen.DONE, values=(1.0,)))
    assert [trial.params for trial in told[:2]] == [seeds[0], seeds[2]]
    assert told[2].params["batch"] != 16


def test_the_same_history_gives_the_same_proposal() -> None:
    """A worker that comes back after a crash would otherwise search somewhere else."""
    told = searched(GRID, trials=12, seed=3)
    again = propose(GRID, told, num_objectives=1, seed=3)
    assert propose(GRID, told, num_objectives=1, seed=3) == again
    assert any(propose(GRID, told, num_objectives=1, seed=seed) != again for seed in range(4, 9))


def test_where_memory_ran_out_the_search_goes_no_further() -> None:
    """Every failed start costs minutes of all devices."""
    space = Space(knobs={"batch": Numbers(values=tuple(range(1, 65)))})
    told: list[Told] = []
    for _ in range(24):
        params = propose(space, told, num_objectives=1, seed=1)
        assert params is not None
        batch = int(params["batch"])
        if batch > 32:
            told.append(Told(params=params, seen=Seen.IMPOSSIBLE, excess=batch / 32 - 1))
        else:
            told.append(Told(params=params, seen=Seen.DONE, values=(-float(batch),)))
    failed_late = sum(trial.seen is Seen.IMPOSSIBLE for trial in told[12:])
    assert failed_late <= 6, "half of the space fails, and chance alone would fail as often"
    assert max(int(trial.params["batch"]) for trial in told if trial.seen is Seen.DONE) >= 29


def test_two_objectives_leave_a_front_and_not_a_point() -> None:
    space = Space(knobs={"x": Range(low=0.0, high=1.0)})
    told: list[Told] = []
    for _ in range(24):
        params = propose(space, told, num_objectives=2, seed=0)
        assert params is not None
        x = float(params["x"])
        told.append(Told(params=params, seen=Seen.DONE, values=(x**2, (x - 0.6) ** 2)))
    inside = [trial for trial in told[8:] if float(trial.params["x"]) <= 0.65]
    assert len(inside) >= 12, "beyond 0.6 both get worse"
    assert (
        max(float(trial.params["x"]) for trial in inside) - min(float(trial.params["x"]) for trial in inside)
        > 0.3
    )


def test_who_is_at_work_somewhere_keeps_others_away() -> None:
    told = searched(GRID, trials=10, seed=0)
    first = propose(GRID, told, num_objectives=1, seed=0)
    assert first is not None
    second = propose(GRID, [*told, Told(params=first, seen=Seen.RUNNING)], num_objectives=1, seed=0)
    assert second not in (None, first)


@pytest.mark.parametrize(("low", "high", "is_whole"), [(1, 4, True), (0.5, 8.0, False)])
def test_a_range_stays_inside_and_whole_ones_stay_whole(low: float, high: float, is_whole: bool) -> None:
    space = Space(knobs={"x": Range(low=low, high=high, is_log=True, is_whole=is_whole)})
    told: list[Told] = []
    while len(told) < 12 and (params := propose(space, told, num_objectives=1, seed=0)) is not None:
        assert low <= float(params["x"]) <= high
        assert isinstance(params["x"], int) is is_whole
        told.append(Told(params=params, seen=Seen.DONE, values=(float(params["x"]),)))
    assert len(told) == (4 if is_whole else 12)


def test_a_trial_behind_the_median_is_ended_and_not_too_early() -> None:
    """A slow trial would cost as much as a good one; one judged by its first steps would be judged by their noise."""
    finished = [dict.fromkeys(range(5, 30), speed) for speed in (-100.0, -110.0, -90.0, -105.0)]
    slow = dict.fromkeys(range(5, 12), -50.0)
    assert is_behind(slow, finished, after_steps=10, after_trials=4)
    assert not is_behind(slow, finished, after_steps=15, after_trials=4)
    assert not is_behind(slow, finished[:3], after_steps=10, after_trials=4)
    assert not is_behind(dict.fromkeys(range(5, 12), -108.0), finished, after_steps=10, after_trials=4)
    assert not is_behind({}, finished, after_steps=10, after_trials=4)
