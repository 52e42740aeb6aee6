"""Batch, length, optimizer, learning rate, intervals."""

import pytest

from tests.spec.migration.conftest import fates, loaded
from trimtab.spec.migration import Fate, MigrationError


def at(migration, path):
    """The value of a key of the job, by its dotted path; None if it is not there."""
    place = migration.job
    for key in path.split("."):
        place = place.get(key, {}) if isinstance(place, dict) else {}
    return place if place != {} else None


ADAMW, COSINE = "train.optimizer.adamw", "train.lr_schedule.cosine"


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("--micro-batch-size 2 --global-batch-size 64", "train.batch", 64),
        ("--micro-batch-size 2 --global-batch-size 64", "train.microbatch", 2),
        ("--micro-batch-size 2 --global-batch-size 64", "fault_tolerance.shares", 8),
        ("--micro-batch-size 4", "train.batch", 32),
        ("--step-batch-size-schedule 0:16 200B:32", "train.batch", 32),
        ("--train-iters 500", "train.steps", 500),
        ("--train-samples 6400 --global-batch-size 64", "train.steps", 100),
        ("--train-samples 6_400 --global-batch-size 64", "train.steps", 100),
        ("--train-tokens 819200 --global-batch-size 64", "train.steps", 100),
        ("--seed 42", "train.seed", 42),
        ("", "train.seed", 1234),
        ("--clip-grad 0.5", "train.clip", 0.5),
        ("--clip-grad 0", "train.clip", "off"),
        ("", "train.clip", 1.0),
        ("--lr 3e-4", f"{ADAMW}.lr", 3e-4),
        ("--optimizer adam --adam-beta2 0.95", f"{ADAMW}.betas", [0.9, 0.95]),
        ("", f"{ADAMW}.eps", 1e-8),
        ("", f"{ADAMW}.weight_decay", 0.01),
        ("--optimizer sgd --lr 0.1", "train.optimizer.sgd.momentum", 0.9),
        ("--optimizer muon --lr 1e-3", f"{ADAMW}.lr", 1e-3),
        ("", "train.lr_schedule.linear.floor", 0.0),
        ("--lr-decay-style cosine --lr 1e-3 --min-lr 1e-4", f"{COSINE}.floor", 0.1),
        ("--lr-decay-style cosine --lr-warmup-iters 20 --train-iters 100", f"{COSINE}.warmup", 20),
        ("--lr-decay-style cosine --lr-warmup-samples 640 --global-batch-size 64", f"{COSINE}.warmup", 10),
        ("--lr-decay-style cosine --lr-warmup-fraction .1 --train-iters 100", f"{COSINE}.warmup", 10),
        (
            "--lr-decay-style cosine --lr-warmup-fraction .1 --train-iters 100 --lr-decay-iters 50",
            f"{COSINE}.warmup",
            5,
        ),
        ("--lr-decay-style cosine --lr-warmup-iters 200 --train-iters 100", f"{COSINE}.warmup", 100),
        ("--lr-decay-style inverse-square-root", "train.lr_schedule.inverse_sqrt.warmup", 0),
        ("--lr-decay-style constant", "train.lr_schedule.constant.warmup", 0),
        ("--save-interval 50 --save /x", "fault_tolerance.checkpoint.every", 50),
        ("--save /x", "orchestration.runs", "/x"),
        ("--eval-interval 10 --eval-iters 3", "train.evaluate.every", 10),
        ("--eval-interval 10 --eval-iters 3", "train.evaluate.batches", 3),
        ("--eval-interval 10 --eval-iters 0", "train.evaluate", None),
        ("--eval-interval 10 --eval-iters 3 --split 100,0,0", "train.evaluate", None),
    ],
)
def test_keys(migrate, flags, key, value):
    """A number that is lost or read in another unit is another training."""
    migration = migrate(flags, devices=8)
    assert at(migration, key) == value
    loaded(migration)


def test_a_batch_that_does_not_come_out_is_told(migrate):
    """Megatron-LM refuses it; a job of another batch must not pass for the one that was asked for."""
    migration = migrate("--micro-batch-size 3 --global-batch-size 64", devices=8)
    assert migration.job["train"]["batch"] == 72
    assert any(
        "a batch of 64 is not 8 replicas times microbatches of 3" in said for said in migration.warnings
    )


def test_replicas_are_all_data_axes(migrate):
    """A share for each replica makes the microbatches those of Megatron-LM."""
    flags = (
        "--tensor-model-parallel-size 2 --expert-model-parallel-size 2 --num-experts 4 --sequence-parallel"
    )
    migration = migrate(f"{flags} --global-batch-size 64", devices=16)
    assert migration.job["fault_tolerance"]["shares"] == 8


@pytest.mark.parametrize(
    ("flag", "fate"),
    [
        ("--rampup-batch-size 16 16 1000", Fate.IMPOSSIBLE),
        ("--train-samples 6400", Fate.CHANGED),
        ("--lr-decay-style WSD", Fate.CHANGED),
        ("--optimizer muon", Fate.CHANGED),
        ("--lr-warmup-init 1e-6", Fate.IMPOSSIBLE),
        ("--lr-warmup-init 0", Fate.IRRELEVANT),
        ("--sgd-momentum 0.9", Fate.IRRELEVANT),
        ("--lr-decay-iters 1000", Fate.IRRELEVANT),
        ("--lr-decay-iters 320000", Fate.IMPOSSIBLE),
        ("--weight-decay-incr-style constant", Fate.IRRELEVANT),
        ("--weight-decay-incr-style cosine", Fate.IMPOSSIBLE),
        ("--exit-interval 10", Fate.IMPOSSIBLE),
        ("--exit-interval 5000", Fate.IRRELEVANT),
        ("--save-interval 0", Fate.IMPOSSIBLE),
        ("--load /x", Fate.IMPOSSIBLE),
        ("--eval-iters 0", Fate.IRRELEVANT),
        ("--decoupled-lr 1e-4", Fate.IMPOSSIBLE),
    ],
)
def test_fates(migrate, flag, fate):
    """The table is what someone decides by: it must not call carried what is not."""
    setting = fates(migrate(flag))[flag.split()[0]]
    assert setting.fate is fate
    assert setting.written == flag


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--lr high", "--lr is 'high'; it takes a number"),
        ("--train-iters 1.5", "--train-iters is '1.5'; it takes a whole number"),
        ("--train-iters 0", "it takes a whole number of at least 1"),
        ("--lr-decay-style square", "--lr-decay-style is 'square'; it takes one of constant, linear"),
    ],
)
def test_values_that_are_none(migrate, flags, message):
    """A value that cannot be read must not become the default."""
    with pytest.raises(MigrationError, match=message):
        migrate(flags)
