"""Tuning files: what they take, and what they refuse at its place."""

import pytest

from trimtab.spec.errors import TuningError
from trimtab.spec.tunings import Pruning, TuningObjective, load_tuning, pruning_of

WHOLE = """\
objectives: [tokens_per_s]
knobs:
  - {key: train.microbatch, values: [1, 2, 4]}
  - {key: train.optimizer.adamw.lr, between: [1e-4, 1e-2], scale: log}
strategies: {planned: 2, files: [mine.trim]}
lines:
  - {name: bucket, one_of: ["REDUCE grads OVER dp BUCKET 1MB"]}
trial: {steps: 20, skip: 4}
budget: {trials: 12, minutes: 10, usd: 3, devices: 4}
prune: {after_steps: 8}
lease: 3s
"""


def test_a_whole_file_is_read() -> None:
    tuning = load_tuning(WHOLE, source="space.yaml")
    assert tuning.objectives == (TuningObjective.TOKENS_PER_S,)
    assert [knob.key for knob in tuning.knobs] == ["train.microbatch", "train.optimizer.adamw.lr"]
    assert tuning.knobs[1].between == (1e-4, 1e-2)
    assert tuning.strategies is not None
    assert tuning.strategies.files == ("mine.trim",)
    assert (tuning.budget.trials, tuning.budget.usd, tuning.lease) == (12, 3.0, 3.0)
    assert pruning_of(tuning) == Pruning(after_steps=8)


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("objectives: [tokens]\nknobs: []\n", "1:14", "Did you mean 'tokens_per_s'?"),
        ("knobs: [{key: x, betwixt: [1, 2]}]\n", "1:18", "Did you mean 'between'?"),
        ("knobs: [{key: x}]\n", "1:9", "exactly one of values and between"),
        ("knobs: [{key: x, between: [3, 2]}]\n", "1:18", "from 3 to 2 there is nothing"),
        ("knobs: [{key: x, between: [0, 2], scale: log}]\n", "1:35", "a log scale has no place for 0"),
        ("knobs: [{key: x, values: [1]}, {key: x, values: [2]}]\n", "1:1", "'x' is varied twice"),
        ("knobs: [{key: x, values: [1]}]\ntrial: {steps: 5}\n", "2:1", "leave no speed to take"),
        ("seed: 1\n", "1:1", "nothing is varied"),
        (
            "objectives: [loss, tokens_per_s]\nknobs: [{key: x, values: [1]}]\nprune: {after_steps: 3}\n",
            "3:1",
            "2 objectives leave nobody behind",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_place(text: str, place: str, said: str) -> None:
    """Hours of trials would go by before anybody saw what was misspelt."""
    with pytest.raises(TuningError) as refused:
        load_tuning(text, source="space.yaml")
    assert f"space.yaml:{place}  " in str(refused.value)
    assert said in str(refused.value)


def test_several_objectives_leave_nobody_behind() -> None:
    """A slow trial may have the best loss."""
    tuning = load_tuning(
        "objectives: [tokens_per_s, loss]\nknobs: [{key: x, values: [1, 2]}]\n", source="space.yaml"
    )
    assert pruning_of(tuning) is None
