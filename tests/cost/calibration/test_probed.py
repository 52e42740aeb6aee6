"""What a probe tells of constants."""

from dataclasses import replace

import numpy as np
import pytest

from tests.catalog.test_probes import PROBE
from trimtab.catalog import ProbedRun
from trimtab.cost.calibration import Belief, MeasuredRun, calibrated_on, cases_of, step_seconds
from trimtab.cost.calibration.probed import belief_with
from trimtab.cost.closed_form import TIME_CONSTANTS

BELIEF = Belief.before(TIME_CONSTANTS)
NAMES = [constant.name for constant in TIME_CONSTANTS]


def test_what_was_measured_is_believed():
    """A collective of 1.5 ms lies outside of what accelerators do, and inside of what this machine may."""
    known = belief_with(BELIEF, PROBE)
    place = NAMES.index("collective_s")
    assert np.exp(known.means[place]) == pytest.approx(1.5e-3)
    assert known.constants[place].high > 1.5e-3 > BELIEF.constants[place].high
    # The slowest rank's: 0.6e11 of 1.2e11, for heads of 64.
    assert np.exp(known.means[NAMES.index("attention_share")]) == pytest.approx(0.5 * 80 / 64)
    assert np.exp(known.means[NAMES.index("kernel_s")]) == pytest.approx(2e-6)
    untouched = NAMES.index("product_share")
    assert known.means[untouched] == BELIEF.means[untouched]


def test_a_rank_alone_measured_no_collective():
    """The logarithm of nothing would be believed, and every plan for one rank end with a traceback."""
    alone = replace(PROBE, num_devices=1, start_s=0.0, link_bytes_per_s=0.0, collectives=(), pairs=())
    known = belief_with(BELIEF, alone)
    place = NAMES.index("collective_s")
    assert known.means[place] == BELIEF.means[place]
    assert np.isfinite(known.means).all()


def test_real_steps_are_fitted(runs: tuple[MeasuredRun, ...]):
    """Steps that take twice what is believed make the next prediction longer."""
    own = [run for run in runs if run.source == "vTrain-single-node"][:6]
    believed = belief_with(BELIEF, PROBE)
    said = step_seconds(cases_of(own), believed.values(believed.means))
    slow = replace(
        PROBE,
        runs=tuple(
            ProbedRun(name=run.row_id, columns=run.columns, step_s=2 * float(seconds))
            for run, seconds in zip(own, said, strict=True)
        ),
    )
    before = calibrated_on(BELIEF, replace(PROBE, runs=())).predict(own).expected
    after = calibrated_on(BELIEF, slow).predict(own).expected
    assert before == pytest.approx(said)
    assert np.median(after / before) == pytest.approx(2.0, rel=0.15)
