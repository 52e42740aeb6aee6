"""Optimizers."""

import pytest

from tests.spec.migration.answers import fate, reason
from trimtab.spec.migration import Fate, MigrationError


def optimizer(convert, kind, **params):
    migration = convert({"optimizer": {"type": kind, "params": params}})
    return migration, migration.job["train"].get("optimizer", {})


def test_what_the_file_leaves_out_has_deepspeeds_defaults(convert):
    """Ours are others: betas of 0.9 and 0.95, and a decay of 0.1."""
    _, written = optimizer(convert, "Adam", lr=2e-4)
    assert written == {"adamw": {"lr": 2e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}}


def test_auto_is_hugging_faces_default_and_said(convert):
    """The rate is in TrainingArguments, not in this file."""
    migration, written = optimizer(convert, "AdamW", lr="auto", betas="auto", eps="auto", weight_decay="auto")
    assert written["adamw"]["lr"] == 5e-5
    for key in ("lr", "betas", "eps", "weight_decay"):
        assert fate(migration, f"optimizer.params.{key}") is Fate.CHANGED
        assert "Hugging Face" in reason(migration, f"optimizer.params.{key}")


@pytest.mark.parametrize("kind", ["OneBitAdam", "ZeroOneAdam", "MuAdam"])
def test_adam_with_something_else_becomes_adam_without_it(convert, kind):
    """What is lost is named: the compression, the skipped sums, the rates by width."""
    migration, written = optimizer(convert, kind, lr=1e-4, freeze_step=10)
    assert "adamw" in written
    assert fate(migration, "optimizer.type") is Fate.CHANGED
    assert fate(migration, "optimizer.params.freeze_step") is Fate.IMPOSSIBLE


@pytest.mark.parametrize("kind", ["Lamb", "Lion", "Muon", "Adagrad", "OneBitLamb", "MyOwn"])
def test_another_optimizer_has_no_equivalent_and_lends_its_rate_to_nobody(convert, kind):
    """Lamb's rate of 0.011 makes AdamW diverge."""
    migration, written = optimizer(convert, kind, lr=0.011)
    assert written == {}
    assert fate(migration, "optimizer.type") is Fate.IMPOSSIBLE
    assert fate(migration, "optimizer.params.lr") is Fate.IMPOSSIBLE
    assert [warning for warning in migration.warnings if kind in warning]


def test_sgd_is_carried(convert):
    """It is the other optimizer that is here."""
    _, written = optimizer(convert, "SGD", lr=0.1, momentum=0.9, nesterov=True)
    assert written == {"sgd": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "nesterov": True}}


def test_a_coupled_decay_has_no_equivalent(convert):
    """Adam with a decay in its gradient trains otherwise than AdamW."""
    flag = "optimizer.params.adam_w_mode"
    coupled, _ = optimizer(convert, "Adam", adam_w_mode=False, weight_decay=0.1)
    without, _ = optimizer(convert, "Adam", adam_w_mode=False, weight_decay=0)
    decoupled, _ = optimizer(convert, "AdamW", adam_w_mode=False, weight_decay=0.1)
    assert fate(coupled, flag) is Fate.IMPOSSIBLE
    assert fate(without, flag) is Fate.IRRELEVANT
    assert fate(decoupled, flag) is Fate.IRRELEVANT


def test_moments_without_correction_have_no_equivalent(convert):
    """The first steps are others."""
    flag = "optimizer.params.bias_correction"
    assert fate(optimizer(convert, "Adam", bias_correction=False)[0], flag) is Fate.IMPOSSIBLE
    assert fate(optimizer(convert, "Adam", bias_correction=True)[0], flag) is Fate.IRRELEVANT


def test_no_optimizer_is_said(convert):
    """The script makes its own, which nobody here has seen."""
    migration = convert({})
    assert "optimizer" not in migration.job["train"]
    assert [warning for warning in migration.warnings if "names no optimizer" in warning]


def test_betas_that_are_not_two_numbers_are_refused(convert):
    """The loader would complain about a key that the user never wrote."""
    with pytest.raises(MigrationError, match="two numbers"):
        optimizer(convert, "Adam", betas=[0.9])
