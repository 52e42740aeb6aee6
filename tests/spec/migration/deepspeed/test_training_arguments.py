"""What Hugging Face fills in, if its arguments are given."""

import json

import pytest

from tests.spec.migration.answers import fate, formulas, reason
from trimtab.spec.migration import Fate, MigrationError, Source
from trimtab.spec.migration.deepspeed import read_deepspeed
from trimtab.spec.migration.deepspeed.layers import RECOMPUTE

AUTO = "auto"
BATCH = dict.fromkeys(
    ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"), AUTO
)
ADAM = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), AUTO)}


def convert(settings, *words):
    source = Source(text=json.dumps({**BATCH, **settings}), name="ds.json", flags=words, devices=4)
    return read_deepspeed(source)


def test_an_argument_fills_in_what_is_auto():
    """Both files of a run together say what it trained."""
    words = ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps=3", "--bf16")
    migration = convert(
        {"bf16": {"enabled": AUTO}, "gradient_clipping": AUTO}, *words, "--max_grad_norm", "0.5"
    )
    train = migration.job["train"]
    assert (train["batch"], train["microbatch"], train["compute"], train["clip"]) == (24, 2, "bf16", 0.5)
    assert fate(migration, "train_micro_batch_size_per_gpu") is Fate.CARRIED
    assert fate(migration, "--per_device_train_batch_size") is Fate.CARRIED
    assert not [warning for warning in migration.warnings if "left to Hugging Face" in warning]


def test_two_arguments_fill_in_one_list():
    """Each keeps its default if it is not given."""
    migration = convert({"optimizer": ADAM}, "--learning_rate", "2e-5", "--adam_beta2", "0.95")
    assert migration.job["train"]["optimizer"]["adamw"] == {
        "lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0,
    }  # fmt: skip
    assert fate(migration, "--adam_beta2") is Fate.CARRIED
    assert fate(migration, "optimizer.params.eps") is Fate.CHANGED


def test_without_an_optimizer_the_trainer_makes_its_own():
    """LLaMA-Factory's configurations name none; the rate is on the command line."""
    migration = convert({}, "--learning_rate", "2e-5")
    assert migration.job["train"]["optimizer"]["adamw"] == {
        "lr": 2e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0,
    }  # fmt: skip
    assert migration.notes["train.optimizer.adamw.eps"] == "Hugging Face's default"


def test_what_stands_in_the_file_is_not_replaced():
    """The Trainer refuses two different values; the file's is what is here."""
    adam = {"type": "AdamW", "params": {"lr": 1e-3}}
    migration = convert({"optimizer": adam}, "--learning_rate", "2e-5")
    assert migration.job["train"]["optimizer"]["adamw"]["lr"] == 1e-3
    assert fate(migration, "--learning_rate") is Fate.IRRELEVANT


def test_arguments_that_need_no_auto():
    """Length, seed and recomputation are never in the file."""
    migration = convert({}, "--max_steps", "70", "--seed", "7", "--gradient_checkpointing")
    assert migration.job["train"]["steps"] == 70
    assert migration.job["train"]["seed"] == 7
    assert RECOMPUTE in formulas(migration)
    assert not [warning for warning in migration.warnings if "how long" in warning]


@pytest.mark.parametrize("words", [("--max_steps", "-1"), ("--gradient_checkpointing", "false")])
def test_an_argument_that_is_off_says_nothing(words):
    """-1 steps means epochs."""
    assert fate(convert({}, *words), words[0]) is Fate.IRRELEVANT


def test_an_argument_that_is_not_read_is_listed():
    """Otherwise its author believes that it counts."""
    migration = convert({}, "--learning_rte", "2e-5", "--logging_steps", "3")
    assert fate(migration, "--logging_steps") is Fate.IMPOSSIBLE
    assert reason(migration, "--learning_rte").endswith("did you mean --learning_rate?")


def test_a_word_that_is_no_argument_is_refused():
    """A second file is not read in silence."""
    with pytest.raises(MigrationError, match=r"other\.json is no argument"):
        convert({}, "other.json")
