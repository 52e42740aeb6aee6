"""Data, checkpoints, failures, logs."""

import pytest

from tests.spec.migration.answers import fate, formulas, reason
from trimtab.spec.migration import Fate


def test_text_of_the_hub_is_not_fetched(convert):
    """The job must not claim to train on c4."""
    migration = convert('[training]\ndataset = "c4"')
    assert fate(migration, "training.dataset") is Fate.IMPOSSIBLE
    assert migration.job["data"]["text"] == "python-stdlib"


def test_text_of_a_folder_is_named(convert):
    """That much is the same on both sides."""
    migration = convert('[training]\ndataset = "c4"\ndataset_path = "/data/c4"')
    assert migration.job["data"]["text"] == "/data/c4"


@pytest.mark.parametrize(
    ("text", "tokenizer"),
    [
        ('hf_assets_path = "./assets/hf/Llama"', "./assets/hf/Llama/tokenizer.json"),
        ('tokenizer_path = "./x/tokenizer.json"', "./x/tokenizer.json"),
        ('tokenizer_path = "./x/tokenizer.model"', None),
    ],
)
def test_the_tokenizer(convert, text, tokenizer):
    """A tokenizer.model is no tokenizer.json."""
    assert convert(f"[model]\n{text}").job["data"].get("tokenizer") == tokenizer


def test_checkpoints(convert):
    """Off unless told there."""
    on = convert("[checkpoint]\nenable_checkpoint = true\ninterval = 50\nkeep_latest_k = 4")
    assert on.job["fault_tolerance"]["checkpoint"] == {"every": 50, "keep": 4}
    off = convert("[checkpoint]\nenable = false\ninterval = 50")
    assert off.job["fault_tolerance"]["checkpoint"] == {"every": "off"}
    every = convert("[checkpoint]\nenable = true\nkeep_latest_k = 0")
    assert fate(every, "checkpoint.keep_latest_k") is Fate.IMPOSSIBLE


def test_time_limits_become_limits_on_standing_still(convert):
    """The first step must not have less than the others: the loader refuses that."""
    limits = convert("[comm]\ninit_timeout_seconds = 50\ntrain_timeout_seconds = 90").job["fault_tolerance"]
    assert limits["detection"] == {"progress": 90, "first_step": 90}


def test_torchft_groups_are_an_axis_and_diloco_is_an_average(convert):
    """Replicas that meet every so many steps sum inside, and have no common bits to keep."""
    text = (
        "[fault_tolerance]\nenable = true\ngroup_size = 2\nsemi_sync_method = 'diloco'\nsync_steps = 20\n"
        "num_fragments = 2\nmin_replica_size = 1\n"
    )
    migration = convert(text)
    assert formulas(migration)[0] == "MESH replica *, dp 4"
    assert "AVERAGE params OVER replica EVERY 20 STEPS USING nesterov(0.9)" in formulas(migration)
    assert "REDUCE grads OVER dp" in formulas(migration)
    assert migration.job["fault_tolerance"]["shares"] == "off"
    assert migration.job["fault_tolerance"]["on_loss"] == "rescale"
    assert fate(migration, "fault_tolerance.num_fragments") is Fate.IMPOSSIBLE


@pytest.mark.parametrize(
    "flag", ["metrics.enable_wandb", "metrics.enable_tensorboard", "profiling.enable_profiling"]
)
def test_what_is_not_here_is_lost_if_it_is_on(convert, flag):
    """A dashboard that stays empty is noticed late."""
    section, _, key = flag.partition(".")
    assert fate(convert(f"[{section}]\n{key} = true"), flag) is Fate.IMPOSSIBLE
    assert fate(convert(f"[{section}]\n{key} = false"), flag) is Fate.IRRELEVANT


def test_code_of_ones_own_has_no_equivalent(convert):
    """It may do anything."""
    migration = convert('[experimental]\ncustom_args_module = "mine"')
    assert "model.module" in reason(migration, "experimental.custom_args_module")
