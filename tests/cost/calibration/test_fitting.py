"""Constants are found again where they made the measurements, and stay where they are believed where nothing is said."""

from collections.abc import Sequence

import numpy as np
import pytest

from trimtab.cost.calibration import Belief, MeasuredRun, calibrate, cases_of, fit, learn, step_seconds
from trimtab.cost.calibration.fitting import sensitivity
from trimtab.cost.closed_form import TIME_CONSTANTS, Floats

BELIEF = Belief.before(TIME_CONSTANTS)
NAMES = [constant.name for constant in TIME_CONSTANTS]


@pytest.fixture(scope="module")
def single_node(runs: tuple[MeasuredRun, ...]) -> list[MeasuredRun]:
    """A hundred runs of small networks."""
    return [run for run in runs if run.source == "vTrain-single-node"][::14]


def moved(**changes: float) -> Floats:
    logarithms = BELIEF.means.copy()
    for name, factor in changes.items():
        logarithms[NAMES.index(name)] += np.log(factor)
    return logarithms


def test_a_constant_that_made_the_measurements_is_found(single_node: Sequence[MeasuredRun]) -> None:
    truth = moved(kernel_s=3.0, tensor_bandwidth=0.5)
    cases = cases_of(single_node)
    found = fit(step_seconds, cases, step_seconds(cases, BELIEF.values(truth)), BELIEF)
    values = BELIEF.values(found.logarithms)
    assert values["kernel_s"] == pytest.approx(21e-6, rel=0.1)
    again = step_seconds(cases, values) / step_seconds(cases, BELIEF.values(truth))
    assert np.abs(np.log(again)).max() < 0.05


def test_what_no_row_depends_on_stays_as_believed(single_node: Sequence[MeasuredRun]) -> None:
    """No experts, no context parallelism: nothing is learned of them."""
    cases = cases_of(single_node)
    found = fit(step_seconds, cases, 1.3 * step_seconds(cases, BELIEF.values(BELIEF.means)), BELIEF)
    for name in ("expert_bandwidth", "expert_kernels", "context_exposed", "attention_share"):
        place = NAMES.index(name)
        assert found.logarithms[place] == pytest.approx(BELIEF.means[place], abs=1e-6)
        assert np.sqrt(found.covariance[place, place]) == pytest.approx(BELIEF.spreads[place], rel=1e-6)


def test_constants_stay_within_physics(single_node: Sequence[MeasuredRun]) -> None:
    cases = cases_of(single_node)
    found = fit(step_seconds, cases, step_seconds(cases, BELIEF.values(BELIEF.means)) / 50, BELIEF)
    low, high = BELIEF.bounds
    assert np.all(found.logarithms >= low)
    assert np.all(found.logarithms <= high)


def test_one_wild_row_does_not_carry_the_fit_away(single_node: Sequence[MeasuredRun]) -> None:
    cases = cases_of(single_node)
    truth = step_seconds(cases, BELIEF.values(BELIEF.means))
    spoilt = truth.copy()
    spoilt[0] *= 20
    found = fit(step_seconds, cases, spoilt, BELIEF)
    assert np.abs(np.log(step_seconds(cases, BELIEF.values(found.logarithms)) / truth))[1:].mean() < 0.02


def test_sensitivity_is_the_slope(single_node: Sequence[MeasuredRun]) -> None:
    cases = cases_of(single_node[:5])
    slopes = sensitivity(step_seconds, cases, BELIEF, BELIEF.means)
    ahead, behind = (
        step_seconds(cases, BELIEF.values(moved(kernel_s=factor))) for factor in (1.01, 1 / 1.01)
    )
    assert slopes[:, NAMES.index("kernel_s")] == pytest.approx(
        np.log(ahead / behind) / (2 * np.log(1.01)), rel=1e-3
    )


def test_other_stacks_move_the_belief_and_one_left_out_does_not(single_node: Sequence[MeasuredRun]) -> None:
    stacks = [moved(kernel_s=4.0)] * 9
    learned = learn(BELIEF, stacks)
    place = NAMES.index("kernel_s")
    assert learned.means[place] - BELIEF.means[place] == pytest.approx(0.75 * np.log(4.0))
    assert learn(BELIEF, []) == BELIEF


def test_measurements_narrow_the_interval_near_them(single_node: Sequence[MeasuredRun]) -> None:
    known, asked = single_node[::2], single_node[1::2]
    seconds = np.asarray([run.step_s for run in known], dtype=np.float64)
    before = calibrate(step_seconds, [], np.zeros(0), BELIEF).predict(asked)
    after = calibrate(step_seconds, known, seconds, BELIEF).predict(asked)
    assert np.median(np.log(after.high / after.low)) < np.median(np.log(before.high / before.low)) / 2
    truth = np.asarray([run.step_s for run in asked], dtype=np.float64)
    assert np.mean(np.abs(after.expected / truth - 1)) < np.mean(np.abs(before.expected / truth - 1)) / 2
