"""The learning rate over the steps as a scheduler of DeepSpeed."""

import pytest

from tests.spec.migration.answers import fate, reason, written
from trimtab.spec.migration import Fate

PARAMS = "scheduler.params"


def test_a_constant_rate_needs_no_scheduler(export):
    """The optimizer holds it."""
    exported = export(keys=("train.lr_schedule={constant: {warmup: 0}}",))
    assert written(exported, "scheduler") is None
    assert fate(exported, "train.lr_schedule.constant.warmup") is Fate.IRRELEVANT


def test_a_warm_up_is_a_line(export):
    """DeepSpeed's own default is a logarithm."""
    keys = ("train.lr_schedule={constant: {warmup: 10}}", "train.optimizer.adamw.lr=3e-4")
    assert written(export(keys=keys), "scheduler") == {
        "type": "WarmupLR",
        "params": {
            "warmup_num_steps": 10,
            "warmup_type": "linear",
            "warmup_min_lr": 0,
            "warmup_max_lr": 3e-4,
        },
    }


@pytest.mark.parametrize(("floor", "expected"), [(0, Fate.CARRIED), (0.1, Fate.CHANGED)])
def test_a_line_falls_to_nothing(export, floor, expected):
    """There is no floor to set."""
    exported = export(keys=(f"train.lr_schedule={{linear: {{warmup: 10, floor: {floor}}}}}",))
    assert written(exported, "scheduler.type") == "WarmupDecayLR"
    assert written(exported, f"{PARAMS}.total_num_steps") == 100
    assert fate(exported, "train.lr_schedule.linear.floor") is expected


def test_a_cosine_has_its_floor(export):
    """As a fraction of the peak, as here."""
    exported = export(keys=("train.lr_schedule={cosine: {warmup: 10, floor: 0.2}}",))
    assert written(exported, "scheduler") == {
        "type": "WarmupCosineLR",
        "params": {
            "total_num_steps": 100,
            "warmup_num_steps": 10,
            "warmup_type": "linear",
            "warmup_min_ratio": 0,
            "cos_min_ratio": 0.2,
        },
    }
    assert fate(exported, "train.steps") is Fate.CARRIED


@pytest.mark.parametrize(("steps", "said"), [(0, 1), (1, 1), (2, 2)])
def test_the_shortest_warm_up_has_two_steps(export, steps, said):
    """DeepSpeed raises a shorter one, and refuses none at all."""
    exported = export(keys=(f"train.lr_schedule={{cosine: {{warmup: {steps}}}}}",))
    assert written(exported, f"{PARAMS}.warmup_num_steps") == said
    is_longer = "at least 2 steps" in reason(exported, "train.lr_schedule.cosine.warmup")
    assert is_longer is (steps < 2)


@pytest.mark.parametrize("schedule", ["step: {every: 10}", "inverse_sqrt: {}", "restarts: {period: 10}"])
def test_other_schedules_are_named(export, schedule):
    """The rate is half of the training."""
    exported = export(keys=(f"train.lr_schedule={{{schedule}}}",))
    assert written(exported, "scheduler") is None
    rows = [row for row in exported.settings if row.flag.startswith("train.lr_schedule.")]
    assert rows
    assert {row.fate for row in rows} == {Fate.IMPOSSIBLE}


def test_a_fall_needs_a_number_of_steps(export):
    """Epochs are counted by the script."""
    exported = export(keys=("train={epochs: 2, lr_schedule: {linear: {warmup: 10}}}",))
    assert written(exported, "scheduler") is None
    assert "train.steps" in reason(exported, "train.lr_schedule.linear.warmup")
