"""What a layout cannot give is refused by name, before a run is started."""

import pytest

from trimtab.app.errors import JobReadError
from trimtab.app.runnable import refuse_what_cannot_run
from trimtab.spec import LoadedJob, load_job

JOB = """\
run: quick
model: {preset: gpt-3m, layers: 2}
data: {text: python-stdlib}
train: {steps: 6, batch: 8}
orchestration: {devices: 4}
parallelism: MESH dp 4; STORE states OVER dp
"""


def load(*overrides: str) -> LoadedJob:
    return load_job(JOB, source="q.yaml", overrides=overrides, environment={}, read=lambda path: "")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("fault_tolerance.detection.probe=0.1", "detection.probe computes shares again"),
        ("train.on_spike.answer=skip", "on_spike skip needs ranks that hold the same state"),
        ("train.on_spike.answer=rollback", "on_spike rollback needs"),
        ("fault_tolerance.on_loss=exact", "on_loss exact is more than this layout can give"),
    ],
)
def test_where_ranks_hold_pieces_it_is_refused(override: str, words: str) -> None:
    """A setting that is passed over in silence is trusted by whoever wrote it."""
    with pytest.raises(JobReadError, match="--set") as caught:
        refuse_what_cannot_run(load(override))
    assert words in str(caught.value)


def test_where_ranks_hold_the_same_it_is_not() -> None:
    """Refusing more than is needed takes away what there is."""
    whole = "parallelism=MESH dp 4"
    refuse_what_cannot_run(load(whole, "fault_tolerance.detection.probe=0.1", "train.on_spike.answer=skip"))
    refuse_what_cannot_run(load("train.on_spike.answer=off"))
