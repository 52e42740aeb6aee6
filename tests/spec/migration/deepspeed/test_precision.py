"""Types."""

import pytest

from tests.spec.migration.answers import fate, formulas
from trimtab.spec.migration import Fate, MigrationError

AUTO = {"enabled": "auto"}
ON, OFF = {"enabled": True}, {"enabled": False}


@pytest.mark.parametrize(
    ("settings", "compute"),
    [
        ({}, "fp32"),
        ({"bf16": ON}, "bf16"),
        ({"bfloat16": ON}, "bf16"),
        ({"fp16": ON}, "bf16"),
        ({"fp16": OFF, "bf16": OFF}, "fp32"),
        ({"fp16": AUTO, "bf16": AUTO}, "fp32"),
        ({"fp16": AUTO, "bf16": ON}, "bf16"),
        ({"fp16": ON, "bf16": AUTO}, "bf16"),
        ({"amp": {"enabled": True, "opt_level": "O1"}}, "bf16"),
        ({"torch_autocast": {"enabled": True, "dtype": "torch.bfloat16"}}, "bf16"),
        ({"torch_autocast": {"enabled": False, "dtype": "bfloat16"}}, "fp32"),
    ],
)
def test_the_type_of_products(convert, settings, compute):
    """Half the speed or other numbers, if it is wrong."""
    assert convert(settings).job["train"]["compute"] == compute


def test_fp16_is_changed_and_its_loss_scale_has_no_equivalent(convert):
    """bf16 needs none; who tuned the scale must learn that it is gone."""
    migration = convert({"fp16": {"enabled": True, "loss_scale": 0, "hysteresis": 2}})
    assert fate(migration, "fp16.enabled") is Fate.CHANGED
    assert fate(migration, "fp16.loss_scale") is Fate.IMPOSSIBLE
    off = convert({"fp16": {"enabled": False, "loss_scale": 0}})
    assert fate(off, "fp16.loss_scale") is Fate.IRRELEVANT


def test_fp16_and_bf16_together_are_refused_as_deepspeed_does(convert):
    """One of them would win in silence."""
    with pytest.raises(MigrationError, match="both enabled"):
        convert({"fp16": ON, "bf16": ON})


def test_what_is_kept_in_bf16_is_said(convert):
    """Memory of the states halves, and so does their precision."""
    kept = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    lines = formulas(convert({"bf16": kept}))
    assert lines[-2:] == ["KEEP params, grads IN bf16", "KEEP states IN bf16"]


@pytest.mark.parametrize(("dtype", "expected"), [("fp32", Fate.IRRELEVANT), ("bf16", Fate.IMPOSSIBLE)])
def test_gradients_are_added_in_fp32(convert, dtype, expected):
    """Whoever asked for less gets more, and is told."""
    migration = convert({"data_types": {"grad_accum_dtype": dtype}})
    assert fate(migration, "data_types.grad_accum_dtype") is expected


@pytest.mark.parametrize(("checks", "expected"), [(True, Fate.CARRIED), (False, Fate.IMPOSSIBLE)])
def test_a_step_that_is_not_finite_is_never_applied(convert, checks, expected):
    """DeepSpeed can be told to apply it."""
    migration = convert({"bf16": {"enabled": True, "check_grad_overflow": checks}})
    assert fate(migration, "bf16.check_grad_overflow") is expected
