"""Stages, recomputation, experts."""

import pytest

from tests.spec.migration.answers import fate, formulas, reason
from trimtab.spec.migration import Fate
from trimtab.spec.migration.deepspeed.layers import RECOMPUTE


@pytest.mark.parametrize(
    ("partition", "clause"),
    [("best", " BALANCE BY time"), ("parameters", " BALANCE BY params"), ("uniform", " BALANCE BY layers")],
)
def test_stages_are_balanced_as_they_were(convert, partition, clause):
    """DeepSpeed has one schedule."""
    migration = convert({"pipeline": {"stages": 2, "partition": partition}})
    assert f"SPLIT layers OVER pp USING 1f1b{clause}" in formulas(migration)


def test_a_balance_by_class_names_has_no_equivalent(convert):
    """It counts layers of one class."""
    migration = convert({"pipeline": {"stages": 2, "partition": "type:transformer"}})
    assert "SPLIT layers OVER pp USING 1f1b" in formulas(migration)
    assert fate(migration, "pipeline.partition") is Fate.IMPOSSIBLE


def test_stages_that_the_script_counts_are_no_pipeline_here(convert):
    """The file cannot know them."""
    migration = convert({"pipeline": {"stages": "auto", "activation_checkpoint_interval": 1}})
    assert fate(migration, "pipeline.stages") is Fate.IRRELEVANT
    assert "PipelineModule" in reason(migration, "pipeline.stages")
    assert RECOMPUTE in formulas(migration)


def test_a_section_that_is_on_recomputes_layers(convert):
    """Memory that is not freed does not fit."""
    checkpointing = {"partition_activations": True, "cpu_checkpointing": True, "number_checkpoints": None}
    migration = convert({"activation_checkpointing": checkpointing})
    assert formulas(migration)[-2:] == [
        RECOMPUTE,
        "OFFLOAD activations WHERE name LIKE '%.mlp_residual' TO host",
    ]
    assert fate(migration, "activation_checkpointing.partition_activations") is Fate.CHANGED


def test_a_section_that_is_off_recomputes_nothing(convert):
    """It only configures a function that the model's code calls."""
    checkpointing = {"partition_activations": False, "cpu_checkpointing": False, "profile": False}
    migration = convert({"activation_checkpointing": checkpointing})
    assert RECOMPUTE not in formulas(migration)
    assert fate(migration, "activation_checkpointing.profile") is Fate.IRRELEVANT
