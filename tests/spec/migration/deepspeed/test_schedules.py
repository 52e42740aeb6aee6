"""The learning rate, and how many steps there are."""

from tests.spec.migration.answers import fate
from trimtab.spec.migration import Fate

ADAM = {"type": "AdamW", "params": {"lr": 1e-4}}


def schedule(convert, kind, **params):
    settings = {"optimizer": ADAM, "scheduler": {"type": kind, "params": params}}
    migration = convert(settings)
    return migration, migration.job["train"]


def test_a_warm_up_then_a_constant_rate(convert):
    """The scheduler's peak replaces the optimizer's rate, as in DeepSpeed."""
    migration, train = schedule(convert, "WarmupLR", warmup_num_steps=50, warmup_max_lr=3e-4)
    assert train["lr_schedule"] == {"constant": {"warmup": 50}}
    assert train["optimizer"]["adamw"]["lr"] == 3e-4
    assert fate(migration, "optimizer.params.lr") is Fate.IRRELEVANT
    assert [warning for warning in migration.warnings if "logarithm" in warning]


def test_the_same_peak_twice_is_carried_twice(convert):
    """Nothing was replaced."""
    migration, _ = schedule(convert, "WarmupLR", warmup_max_lr=1e-4, warmup_type="linear")
    assert fate(migration, "optimizer.params.lr") is Fate.CARRIED
    assert fate(migration, "scheduler.params.warmup_type") is Fate.CARRIED
    assert not [warning for warning in migration.warnings if "logarithm" in warning]


def test_a_fall_to_zero_at_the_total(convert):
    """The scheduler is the only place of the file that knows the length."""
    _, train = schedule(convert, "WarmupDecayLR", warmup_num_steps=10, total_num_steps=400)
    assert train["lr_schedule"] == {"linear": {"warmup": 10, "floor": 0}}
    assert train["steps"] == 400


def test_half_a_cosine(convert):
    """Its floor is a ratio there as here."""
    _, train = schedule(convert, "WarmupCosineLR", total_num_steps=400, cos_min_ratio=0.05)
    assert train["lr_schedule"] == {"cosine": {"warmup": 1000, "floor": 0.05}}


def test_a_cycle_is_a_warm_up_and_a_fall_that_end_the_run(convert):
    """What follows the cycle is lost, and so is its momentum."""
    params = {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3, "cycle_first_step_size": 30}
    migration, train = schedule(
        convert, "OneCycle", **params, cycle_second_step_size=70, cycle_momentum=True, decay_lr_rate=0.1
    )
    assert train["lr_schedule"] == {"linear": {"warmup": 30, "floor": 0.01}}
    assert train["steps"] == 100
    assert train["optimizer"]["adamw"]["lr"] == 1e-3
    assert fate(migration, "scheduler.params.cycle_momentum") is Fate.IMPOSSIBLE
    assert fate(migration, "scheduler.params.decay_lr_rate") is Fate.IMPOSSIBLE


def test_a_range_test_has_no_equivalent(convert):
    """It looks for a rate, it does not train."""
    migration, _ = schedule(convert, "LRRangeTest", lr_range_test_min_lr=1e-4)
    assert fate(migration, "scheduler.type") is Fate.IMPOSSIBLE
    assert fate(migration, "scheduler.params.lr_range_test_min_lr") is Fate.IMPOSSIBLE


def test_auto_is_said(convert):
    """Hugging Face computes the length from the data."""
    auto = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto")
    migration, train = schedule(convert, "WarmupDecayLR", **auto)
    assert train["lr_schedule"]["linear"]["warmup"] == 0
    assert train["optimizer"]["adamw"]["lr"] == 1e-4
    for key in ("warmup_max_lr", "warmup_num_steps", "total_num_steps"):
        assert fate(migration, f"scheduler.params.{key}") is Fate.CHANGED
    assert [warning for warning in migration.warnings if "how long to train" in warning]


def test_a_misspelt_parameter_is_not_said_to_belong_elsewhere(convert):
    """DeepSpeed would have refused it; its author must see it."""
    migration, _ = schedule(convert, "WarmupLR", warmup_num_step=5)
    row = next(row for row in migration.settings if row.flag == "scheduler.params.warmup_num_step")
    assert row.reason.endswith("did you mean scheduler.params.warmup_num_steps?")


def test_a_stand_in_for_the_length_is_longer_than_the_warm_up(convert):
    """The loader refuses a warm-up beyond the end."""
    _, train = schedule(convert, "WarmupLR", warmup_num_steps=3000)
    assert train["steps"] >= 3000
