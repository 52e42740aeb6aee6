"""YAML configurations of Megatron-LM, Megatron Core and NeMo."""

import pytest

from tests.spec.migration.conftest import fates
from trimtab.spec.migration import Fate, MigrationError
from trimtab.spec.migration.megatron.yaml_flags import is_yaml, read_yaml_launch

SHAPE = "num_layers: 8\nhidden_size: 64\nnum_attention_heads: 8\nseq_length: 32\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1", True),
        ("# comment\n\n---\nmodel:\n  a: 1", True),
        ('"a": 1', True),
        ("{a: 1}", True),
        ("--a: 1", True),
        ("--num-layers 4", False),
        ("#!/bin/bash\nA=1", False),
        ("export A=b: c", False),
        ("", False),
    ],
)
def test_yaml_is_told_from_a_script(text, expected):
    """A script read as YAML, or the other way round, gives an error about the wrong thing."""
    assert is_yaml(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        f"{SHAPE}tensor_model_parallel_size: 2\nsequence_parallel: true\nbf16: true\n",
        "model:\n"
        + "".join(f"  {line}\n" for line in SHAPE.splitlines())
        + "  tensor_model_parallel_size: 2\n  sequence_parallel: True\ntrainer:\n  precision: bf16\n",
        "language_model:\n"
        + "".join(f"  {line}\n" for line in SHAPE.splitlines())
        + "model_parallel:\n  tensor_model_parallel_size: 2\n  sequence_parallel: true\n  bf16: True\n",
        "MODEL_ARGS:\n"
        + "".join(f"  --{line.replace('_', '-')}\n" for line in SHAPE.splitlines())
        + "  --tensor-model-parallel-size: 2\n  --sequence-parallel: true\n  --bf16: true\n",
    ],
    ids=["flat", "NeMo", "yaml-cfg", "flags as keys"],
)
def test_every_form_says_the_same(migrate, text):
    """One training in four spellings is one job."""
    migration = migrate(text=text)
    assert migration.formulas == (
        "MESH dp *, tp 2\nSPLIT batch OVER dp\nSPLIT heads, mlp, vocab OVER tp\n"
        "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp\n"
    )
    assert migration.job["train"]["compute"] == "bf16"
    assert (migration.job["model"]["layers"], migration.job["data"]["sequence"]) == (8, 32)


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("add_bias_linear: false", "--disable-bias-linear"),
        ("check_for_nan_in_loss_and_grad: false", "--no-check-for-nan-in-loss-and-grad"),
        ("normalization: RMSNorm", "--normalization"),
        ("share_embeddings_and_output_weights: false", "--untie-embeddings-and-output-weights"),
        ("num_moe_experts: 8", "--num-experts"),
        ("virtual_pipeline_model_parallel_size: 2", "--num-virtual-stages-per-pipeline-rank"),
        ("activation: squared-relu", "--squared-relu"),
        ("fp8: e4m3", "--fp8-format"),
    ],
)
def test_keys_that_are_spelt_otherwise(line, flag):
    """Megatron Core's fields and Megatron-LM's flags have grown apart."""
    assert flag in {found.name for found in read_yaml_launch(line, source="x.yaml").flags}


@pytest.mark.parametrize(
    "line",
    [
        "bf16: false",
        "masked_softmax_fusion: False",
        "num_query_groups: null",
        "fp8: null",
        "add_bias_linear: true",
        "fsdp: false",
    ],
)
def test_keys_that_say_the_default(line):
    """Half of a NeMo configuration says nothing, and the table has to say that."""
    launch = read_yaml_launch(f"{line}\n", source="x.yaml")
    assert launch.flags == ()
    assert [setting.fate for setting in launch.settled] == [Fate.IRRELEVANT]


def test_keys_are_named_as_they_stand(migrate):
    """Someone who reads `--num-layers` in the table looks in vain for it in the file."""
    found = fates(migrate(text="model:\n" + "".join(f"  {line}\n" for line in SHAPE.splitlines())))
    assert found["model.num_layers"].fate is Fate.CARRIED
    assert found["model.num_layers"].value == "8"


def test_a_key_that_nobody_knows_is_named_with_its_nearest(migrate):
    """A misspelt key is a setting that the training never had."""
    setting = fates(migrate(text=f"{SHAPE}tensor_model_paralel_size: 2\n"))["tensor_model_paralel_size"]
    assert setting.fate is Fate.IMPOSSIBLE
    assert "--tensor-model-parallel-size" in setting.reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "pipe_parallel_size: 2\nmodel_parallel_size: 2\n",
            "keys of GPT-NeoX or DeepSpeed.*trimtab import deepspeed",
        ),
        ('{"pipe-parallel-size": 2}', "keys of GPT-NeoX"),
        (
            "model:\n  encoder:\n    num_layers: 1\n  decoder:\n    num_layers: 1\n",
            "an encoder with a decoder",
        ),
    ],
)
def test_other_systems_are_refused(text, message):
    """GPT-NeoX's keys look alike and mean other things."""
    with pytest.raises(MigrationError, match=message):
        read_yaml_launch(text, source="x.yaml")
