"""Keys of a job as DeepSpeed says them."""

import pytest

from tests.spec.migration.answers import fate, reason, setting, written
from trimtab.spec.migration import Fate

BF16 = "train.compute=bf16"


def test_the_batch_is_said_in_all_three_ways(export):
    """DeepSpeed checks that they fit."""
    exported = export(keys=("train.batch=64", "train.microbatch=2"))
    assert written(exported, "train_batch_size") == 64
    assert written(exported, "train_micro_batch_size_per_gpu") == 2
    assert written(exported, "gradient_accumulation_steps") == 4


def test_a_batch_that_does_not_divide_is_rounded_up(export):
    """Every device has as many samples there."""
    exported = export(keys=("train.batch=20", "fault_tolerance.shares=10"))
    assert written(exported, "train_batch_size") == 24
    assert fate(exported, "train.batch") is Fate.CHANGED


def test_microbatches_are_of_one_size(export):
    """DeepSpeed has no smaller last one."""
    exported = export(keys=("train.batch=48", "train.microbatch=4", "fault_tolerance.shares=12"))
    assert written(exported, "train_micro_batch_size_per_gpu") == 3
    assert "a device has 6 samples a step" in reason(exported, "train.microbatch")


def test_adamw_has_all_its_numbers(export):
    """Their defaults are others."""
    assert written(export(), "optimizer") == {
        "type": "AdamW",
        "params": {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1e-08, "weight_decay": 0.1},
    }


@pytest.mark.parametrize(("stored", "allowed"), [((), None), (("STORE states OVER dp",), True)])
def test_sgd_with_zero_must_be_allowed(export, stored, allowed):
    """DeepSpeed refuses it otherwise."""
    keys = ("train.optimizer={sgd: {lr: 0.1, momentum: 0.9, nesterov: true}}",)
    exported = export("MESH dp *", "SPLIT batch OVER dp", *stored, keys=keys)
    assert written(exported, "optimizer.type") == "SGD"
    assert written(exported, "optimizer.params.nesterov") is True
    assert written(exported, "zero_allow_untested_optimizer") is allowed


@pytest.mark.parametrize(("clip", "said"), [("0.5", 0.5), ("off", 0)])
def test_clipping_is_always_said(export, clip, said):
    """Its default has changed between releases."""
    assert written(export(keys=(f"train.clip={clip}",)), "gradient_clipping") == said


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((BF16, "train.on_nonfinite=skip"), Fate.CARRIED),
        (("train.on_nonfinite=skip",), Fate.IMPOSSIBLE),
        ((BF16, "train.on_nonfinite=stop"), Fate.IMPOSSIBLE),
    ],
)
def test_a_step_that_is_not_finite_is_skipped_in_bf16(export, keys, expected):
    """DeepSpeed knows no other answer."""
    assert fate(export(keys=keys), "train.on_nonfinite") is expected


def test_the_launcher_gets_the_devices(export):
    """The file does not hold them."""
    row = setting(export(devices=16), "orchestration.devices")
    assert row.reason.endswith("torchrun --nnodes 2 --nproc-per-node 8")


WRITTEN = (
    "data.sequence=64", "data.held_out=0.1", "data.cache=tokens", "data.packing=pad", "model.layers=2", "train.seed=3",
    "train.evaluate.every=10", "orchestration.engine=local", "orchestration.threads=2",
    "orchestration.price_usd_per_device_hour=2", "orchestration.storage_usd_per_gb_month=0.02",
    "orchestration.runs=here", "orchestration.grace=10s",
    "orchestration.environment.pass=[HOME]", "orchestration.environment.set.LEVEL=1",
    "fault_tolerance.shares=8", "fault_tolerance.on_loss=rollback", "fault_tolerance.replace=true",
    "fault_tolerance.checkpoint.every=50", "fault_tolerance.checkpoint.keep=2", "fault_tolerance.detection.heartbeat=4s",
    "fault_tolerance.restarts.node_loss=3",
)  # fmt: skip


@pytest.mark.parametrize("key", WRITTEN)
def test_every_key_that_was_written_meets_a_fate(export, key):
    """What is passed over in silence is missed later."""
    path = key.partition("=")[0]
    row = setting(export(keys=(key,)), path)
    assert row.fate in (Fate.IMPOSSIBLE, Fate.IRRELEVANT)
    assert row.reason
