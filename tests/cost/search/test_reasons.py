"""How sure two step times are of each other."""

from collections.abc import Callable

import numpy as np
import pytest

from trimtab.cost.calibration import Calibrated, calibrate, published_fits, step_seconds
from trimtab.cost.calibration.calibrated import UNCALIBRATED_SPREAD
from trimtab.cost.search import Layout, Question, log_spread_between
from trimtab.cost.search.reasons import OWN_SPREAD


@pytest.fixture(scope="module")
def time() -> Calibrated:
    """Of published stacks."""
    return calibrate(step_seconds, [], np.zeros(0), published_fits().time_belief())


def test_a_layout_beside_itself_is_certain(question: Callable[..., Question], time: Calibrated) -> None:
    """One cluster at two providers: whatever a step takes, the ratio of dollars is that of the prices."""
    here = (question(), Layout(devices=8))
    assert log_spread_between(here, (question(), Layout(devices=8)), time=time) == 0.0


def test_two_clusters_know_less_of_each_other_than_two_layouts(
    question: Callable[..., Question], time: Calibrated
) -> None:
    """What is not explained of one card says nothing of another's."""
    here = (question(), Layout(devices=8))
    nearby = log_spread_between(here, (question(), Layout(devices=8, tensor=2)), time=time)
    elsewhere = log_spread_between(here, (question(cluster="512xH100"), Layout(devices=8)), time=time)
    assert OWN_SPREAD < nearby < elsewhere
    assert elsewhere > 2**0.5 * UNCALIBRATED_SPREAD
    back = log_spread_between((question(cluster="512xH100"), Layout(devices=8)), here, time=time)
    assert back == pytest.approx(elsewhere)
