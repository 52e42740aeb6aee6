"""Sums of gradients, and clipping."""

import pytest

from tests.spec.migration.answers import fate, formulas, reason
from trimtab.spec.migration import Fate

BUCKET = "zero_optimization.reduce_bucket_size"


def reduced(migration):
    return [line for line in formulas(migration) if line.startswith("REDUCE")]


def test_a_bucket_of_elements_becomes_bytes_and_the_conversion_is_stated(convert):
    """A factor of two between the systems is found nowhere else."""
    migration = convert({"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}})
    assert reduced(migration) == ["REDUCE grads OVER dp BUCKET 2GB"]
    assert reason(migration, BUCKET) == "500000000 elements of 4 bytes"


def test_a_bucket_on_a_narrower_wire_has_fewer_bytes(convert):
    """The elements are the wire's."""
    settings = {
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 500},
        "communication_data_type": "bf16",
    }
    migration = convert(settings)
    assert reduced(migration) == ["REDUCE grads OVER dp BUCKET 1KB IN bf16"]


def test_a_bucket_of_nothing_sends_every_tensor_alone(convert):
    """No bucket of 0 bytes can be filled."""
    migration = convert({"zero_optimization": {"stage": 2, "reduce_bucket_size": 0}})
    assert reduced(migration) == ["REDUCE grads OVER dp BUCKET 1B"]


@pytest.mark.parametrize(
    "zero", [{"stage": 0, "reduce_bucket_size": 5}, {"stage": 3, "reduce_bucket_size": "auto"}]
)
def test_a_bucket_that_says_nothing_is_left_out(convert, zero):
    """Without ZeRO it is not read; auto depends on a width that the file does not hold."""
    migration = convert({"zero_optimization": zero})
    assert reduced(migration) == []
    assert fate(migration, BUCKET) is Fate.IRRELEVANT


def test_the_sum_goes_over_every_axis_of_data_and_sequence(convert):
    """A gradient that is not summed over all of them is wrong."""
    settings = {
        "zero_optimization": {"stage": 3, "mics_shard_size": 2},
        "communication_data_type": "fp32",
        "sequence_parallel_size": 2,
    }
    assert reduced(convert(settings)) == ["REDUCE grads OVER replica, dp, cp IN fp32"]


def test_quantized_gradients_become_int8(convert):
    """ZeRO++ sends four bits; the loss is named."""
    migration = convert({"zero_optimization": {"stage": 3, "zero_quantized_gradients": True}})
    assert reduced(migration) == ["REDUCE grads OVER dp COMPRESS int8"]
    assert fate(migration, "zero_optimization.zero_quantized_gradients") is Fate.CHANGED


def test_a_wider_sum_than_theirs_is_said(convert):
    """Twice the bytes on the wire are a surprise."""
    said = [warning for warning in convert({"bf16": {"enabled": True}}).warnings if "IN bf16" in warning]
    assert len(said) == 1
    told = convert({"bf16": {"enabled": True}, "communication_data_type": "bf16"})
    assert not [warning for warning in told.warnings if "IN bf16" in warning]


@pytest.mark.parametrize(("limit", "clip"), [(0.5, 0.5), (0, "off"), ("auto", 1.0)])
def test_clipping(convert, limit, clip):
    """0 switches it off there."""
    assert convert({"gradient_clipping": limit}).job["train"]["clip"] == clip


def test_clipping_that_nobody_sets_is_said(convert_text):
    """Releases differ: the same file clips or does not."""
    migration = convert_text('{"train_batch_size": 8}')
    assert migration.job["train"]["clip"] == 1.0
    assert [warning for warning in migration.warnings if "0.19.4" in warning]


def test_clipping_in_the_optimizer_is_read_unless_the_file_clips_too(convert_text):
    """Configurations of 2020 have it there."""
    adam = '"optimizer": {"type": "Adam", "params": {"max_grad_norm": 2.0}}'
    assert convert_text(f'{{"train_batch_size": 8, {adam}}}').job["train"]["clip"] == 2.0
    both = convert_text(f'{{"train_batch_size": 8, "gradient_clipping": 0.5, {adam}}}')
    assert both.job["train"]["clip"] == 0.5
    assert fate(both, "optimizer.params.max_grad_norm") is Fate.IRRELEVANT


@pytest.mark.parametrize(("op", "expected"), [("mean", Fate.IRRELEVANT), ("sum", Fate.IMPOSSIBLE)])
def test_the_loss_is_a_mean(convert, op, expected):
    """A sum over ranks has another rate for every number of devices."""
    assert fate(convert({"gradient_allreduce_op": op}), "gradient_allreduce_op") is expected
