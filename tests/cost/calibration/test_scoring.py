"""Scores of predictions: nothing is predicted from its own measurement."""

from dataclasses import replace

import numpy as np
import pytest

from trimtab.cost.calibration import (
    MeasuredRun,
    Scored,
    held_out,
    published_fits,
    ranked_groups,
    score_after,
    stack_fits,
)
from trimtab.cost.calibration.scoring import StackFits

SOURCES = ("Narayanan21-SC21-T1", "BigScience-tr3m-V100", "NeMo-24.07-docs", "torchtitan-H200")


@pytest.fixture(scope="module")
def some(runs: tuple[MeasuredRun, ...]) -> list[MeasuredRun]:
    """The runs of some small sources."""
    return [run for run in runs if run.source in SOURCES]


@pytest.fixture(scope="module")
def fits(some: list[MeasuredRun]) -> StackFits:
    """Of these."""
    return stack_fits(some)


def by_id(scored: list[Scored]) -> dict[str, Scored]:
    return {one.run.row_id: one for one in scored}


def test_every_run_is_scored_once(some: list[MeasuredRun], fits: StackFits) -> None:
    scored = held_out(some, fits)
    assert sorted(one.run.row_id for one in scored) == sorted(run.row_id for run in some)


def test_a_run_is_not_predicted_from_its_own_measurement(some: list[MeasuredRun], fits: StackFits) -> None:
    """Doubling what was measured of one plan moves the predictions of others, never its own."""
    plan = some[3].columns
    changed = [
        replace(run, step_s=run.step_s * 2) if run.columns == plan and run.step_s else run for run in some
    ]
    before, after = by_id(held_out(some, fits)), by_id(held_out(changed, fits))
    assert after[some[3].row_id].step_s == before[some[3].row_id].step_s
    moved = [name for name in before if after[name].step_s != before[name].step_s]
    assert moved
    assert all(before[name].run.source == some[3].source for name in moved)


def test_the_source_itself_is_left_out_of_what_is_expected_of_it(fits: StackFits) -> None:
    with_all, without = fits.time_belief(), fits.time_belief(SOURCES[0])
    assert not np.allclose(with_all.means, without.means)
    others = replace(fits, time={name: found for name, found in fits.time.items() if name != SOURCES[0]})
    assert np.array_equal(others.time_belief().means, without.means)


def test_rows_for_calibration_are_chosen_by_plans_alone(some: list[MeasuredRun], fits: StackFits) -> None:
    def taken(runs: list[MeasuredRun]) -> set[str]:
        return {one.run.row_id for one in score_after(runs, fits, rows=3) if one.is_calibration}

    chosen = taken(some)
    assert chosen == taken([replace(run, step_s=(run.step_s or 1) * 7) for run in some])
    assert sum(name in chosen for name in [run.row_id for run in some if run.source == SOURCES[0]]) == 3


def test_without_rows_nothing_of_the_source_is_used(some: list[MeasuredRun], fits: StackFits) -> None:
    scored = score_after(some, fits, rows=0)
    changed = [replace(run, step_s=(run.step_s or 1) * 7) for run in some]
    assert not any(one.is_calibration for one in scored)
    assert [one.step_s for one in scored] == [one.step_s for one in score_after(changed, fits, rows=0)]


def test_regret_is_what_choosing_by_prediction_costs(some: list[MeasuredRun]) -> None:
    base = next(run for run in some if run.source == SOURCES[0])
    group = [
        Scored(run=replace(base, row_id=str(number), step_s=measured), step_s=predicted)
        for number, (measured, predicted) in enumerate([(10, 9), (8, 9.5), (12, 11), (16, 15)])
    ]
    (found,) = ranked_groups(group)
    assert (found.size, found.regret) == (4, pytest.approx(0.25))
    assert found.tau == pytest.approx(4 / 6)
    assert ranked_groups(group[:3]) == []


def test_memory_of_a_run_that_ended_without_is_above_its_device(runs: tuple[MeasuredRun, ...]) -> None:
    """Of BigScience's small runs on 16 and 32 GB the four that ran out of memory are told from the rest."""
    own = [run for run in runs if run.source == "BigScience-tr3m-V100"]
    scored = held_out(own, stack_fits(own))
    ended = [one for one in scored if one.run.is_out_of_memory]
    assert len(ended) == 4
    assert not any(one.fits for one in ended)
    assert sum(bool(one.fits) for one in scored) >= 20


def test_the_constants_that_come_along_are_those_of_the_published_runs(
    runs: tuple[MeasuredRun, ...],
) -> None:
    """`bench/planner.py --write-constants` writes them anew."""
    written, found = published_fits(), stack_fits(runs)
    for kind in ("time", "memory"):
        old, new = getattr(written, kind), getattr(found, kind)
        assert list(old) == list(new)
        for source in new:
            assert old[source] == pytest.approx(new[source], abs=0.02), source
