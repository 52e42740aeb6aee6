"""What a trial sets, and how it is undone."""

from pathlib import Path

import pytest

from trimtab.app.job_reading import read_job
from trimtab.app.tuning.trial_settings import (
    UNSET,
    choices_from,
    choices_of,
    overrides_of,
    settings_of,
    space_of,
    to_leave_out,
    undoing,
)
from trimtab.spec import LoadedJob
from trimtab.spec.tunings import load_tuning

SPACE = """\
knobs:
  - {key: train.batch, values: [4, 16]}
  - {key: train.optimizer.adamw.lr, between: [1e-5, 1e-4], scale: log}
  - {key: orchestration.environment.set.NCCL_ALGO, values: [Ring, Tree]}
lines:
  - {name: bucket, one_of: ["REDUCE grads OVER dp BUCKET 1MB"]}
"""


@pytest.fixture
def loaded(desk: Path) -> LoadedJob:
    return read_job("job.yaml", ["parallelism=MESH dp 2"])


def test_the_first_trial_is_the_job_as_it_is(loaded: LoadedJob) -> None:
    """What was gained would be counted from another job than the user's."""
    tuning = load_tuning(SPACE, source="space.yaml")
    choices = choices_of(loaded, tuning)
    space = space_of(loaded, tuning, choices_from(choices.document()))
    assert space.knobs["train.batch"].values == (4, 8, 16)
    (own,) = space.seeds
    assert own == {
        "train.batch": 8,
        "train.optimizer.adamw.lr": 1e-4,  # the nearest end of a range that does not hold the job's
        "orchestration.environment.set.NCCL_ALGO": UNSET,
        "bucket": "",
    }
    assert "orchestration.environment.set.NCCL_ALGO" not in settings_of(own, choices)


def test_what_a_trial_sets_is_undone_by_the_lines_that_say_so(loaded: LoadedJob) -> None:
    """Who takes a change back must have the job that was there before."""
    choices = choices_of(loaded, load_tuning(SPACE, source="space.yaml"))
    settings = settings_of(
        {
            "train.batch": 16,
            "train.optimizer.adamw.lr": 2e-5,
            "orchestration.environment.set.NCCL_ALGO": "Tree",
            "bucket": "REDUCE grads OVER dp BUCKET 1MB",
        },
        choices,
    )
    own = ["parallelism=MESH dp 2"]
    tuned = read_job("job.yaml", [*own, *overrides_of(settings)])
    assert dict(tuned.job.orchestration.environment.assigned) == {"NCCL_ALGO": "Tree"}
    assert tuned.job.parallelism.text.splitlines() == ["MESH dp 2", "REDUCE grads OVER dp BUCKET 1MB"]
    left = to_leave_out(loaded, settings)
    assert left == ["orchestration.environment.set.NCCL_ALGO"]
    kept = {key: value for key, value in settings.items() if key not in left}
    undone = [*own, *overrides_of(kept), *overrides_of(undoing(loaded, settings))]
    assert read_job("job.yaml", undone).digest() == loaded.digest()
