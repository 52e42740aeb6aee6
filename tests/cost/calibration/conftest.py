"""Published runs, read once."""

import pytest

from trimtab.catalog import published_runs
from trimtab.cost.calibration import MeasuredRun, measured_runs


@pytest.fixture(scope="session")
def runs() -> tuple[MeasuredRun, ...]:
    """All of them."""
    return measured_runs(published_runs())
