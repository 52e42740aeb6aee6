"""Types of what is kept and summed, buckets and compression as DeepSpeed says them."""

import pytest

from tests.spec.migration.answers import fate, reason, written
from trimtab.spec.migration import Fate

PLAIN = ("MESH dp *", "SPLIT batch OVER dp")
ZERO3 = "STORE params, grads, states OVER dp"
BF16 = ("train.compute=bf16",)
BUCKET = "zero_optimization.reduce_bucket_size"
QUANTIZED = "zero_optimization.zero_quantized_gradients"


@pytest.mark.parametrize(("wire", "elements"), [("", 5_000_000), (" IN bf16", 10_000_000)])
def test_a_bucket_counts_elements_of_the_type_on_the_wire(export, wire, elements):
    """Bytes taken for elements are four times too many."""
    formula = f"REDUCE grads OVER dp BUCKET 20MB{wire}"
    exported = export(*PLAIN, "STORE states OVER dp", formula)
    assert written(exported, BUCKET) == elements
    assert fate(exported, formula) is Fate.CARRIED


def test_a_bucket_without_zero_has_no_setting(export):
    """DeepSpeed sums in buckets of a fixed size then."""
    formula = "REDUCE grads OVER dp BUCKET 20MB"
    exported = export(*PLAIN, formula)
    assert written(exported, BUCKET) is None
    assert fate(exported, formula) is Fate.IMPOSSIBLE


@pytest.mark.parametrize(
    ("clause", "wire"), [("IN bf16", "bf16"), ("IN fp16", "fp16"), ("COMPRESS bf16", "bf16")]
)
def test_the_type_on_the_wire_is_carried(export, clause, wire):
    """It is half of the traffic."""
    formula = f"REDUCE grads OVER dp {clause}"
    exported = export(*PLAIN, formula, keys=BF16)
    assert written(exported, "communication_data_type") == wire
    assert fate(exported, formula) is Fate.CARRIED


def test_sums_stay_fp32_where_products_are_bf16(export):
    """DeepSpeed would sum them in bf16."""
    exported = export(*PLAIN, "STORE states OVER dp", keys=BF16)
    assert written(exported, "communication_data_type") == "fp32"
    assert written(exported, "data_types.grad_accum_dtype") == "fp32"


def test_without_zero_microbatches_are_added_in_bf16(export):
    """DeepSpeed refuses the setting that would say otherwise."""
    exported = export(*PLAIN, keys=BF16)
    assert written(exported, "data_types.grad_accum_dtype") is None
    assert "added in bf16" in reason(exported, "train.compute")


@pytest.mark.parametrize(("stored", "is_on"), [(ZERO3, True), ("STORE grads, states OVER dp", None)])
def test_int8_is_for_stage_three(export, stored, is_on):
    """The other stages ignore the setting."""
    formula = "REDUCE grads OVER dp COMPRESS int8"
    exported = export(*PLAIN, stored, formula)
    assert written(exported, QUANTIZED) is is_on
    assert fate(exported, formula) is (Fate.CHANGED if is_on else Fate.IMPOSSIBLE)


@pytest.mark.parametrize(
    ("clause", "why"),
    [
        ("COMPRESS powersgd(4)", "no compression like powersgd"),
        ("USING tree", "not by tree"),
        ("IN fp8", "fp32, fp16 or bf16"),
    ],
)
def test_ways_of_summing_that_deepspeed_lacks_are_named(export, clause, why):
    """A run that sends more than it did is slower."""
    formula = f"REDUCE grads OVER dp {clause}"
    exported = export(*PLAIN, formula)
    assert fate(exported, formula) is Fate.IMPOSSIBLE
    assert why in reason(exported, formula)


def test_a_plain_sum_needs_no_setting(export):
    """It is what data parallelism is."""
    assert fate(export(*PLAIN, "REDUCE grads OVER dp"), "REDUCE grads OVER dp") is Fate.IRRELEVANT


def test_tables_kept_in_bf16_need_each_other(export):
    """States in bf16 beside fp32 weights are refused there."""
    weights, states = "KEEP params, grads IN bf16", "KEEP states IN bf16"
    exported = export(*PLAIN, ZERO3, weights, states, keys=BF16)
    assert written(exported, "bf16.bf16_master_weights_and_grads") is True
    assert written(exported, "bf16.bf16_optimizer_states") is True
    assert fate(export(*PLAIN, ZERO3, states, keys=BF16), states) is Fate.IMPOSSIBLE


def test_gradients_alone_are_added_in_bf16(export):
    """It halves their memory."""
    formula = "KEEP grads IN bf16"
    exported = export(*PLAIN, ZERO3, formula, keys=BF16)
    assert written(exported, "data_types.grad_accum_dtype") == "bf16"
    assert fate(exported, formula) is Fate.CARRIED


@pytest.mark.parametrize(
    ("formula", "keys", "expected"),
    [
        ("KEEP states IN fp32", BF16, Fate.IRRELEVANT),
        ("KEEP states IN fp16", BF16, Fate.IMPOSSIBLE),
        ("KEEP grads IN bf16", (), Fate.IMPOSSIBLE),
        ("KEEP states WHERE layer < 2 IN bf16", BF16, Fate.IMPOSSIBLE),
    ],
)
def test_other_types_are_kept_as_they_are_there(export, formula, keys, expected):
    """fp32 is the rule on both sides."""
    assert fate(export(*PLAIN, ZERO3, formula, keys=keys), formula) is expected
