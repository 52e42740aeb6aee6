"""Batch, length, optimizer and learning rate."""

import pytest

from tests.spec.migration.answers import fate, reason
from trimtab.spec.migration import Fate, MigrationError


def train(convert, text, **options):
    return convert(text, **options).job["train"]


def test_what_a_file_leaves_out_has_torchtitans_defaults(convert):
    """Each is spelt out with its origin."""
    migration = convert("")
    written = migration.job["train"]
    assert (written["steps"], written["batch"], written["microbatch"]) == (10_000, 64, 8)
    assert written["optimizer"]["adamw"] == {
        "lr": 8e-4,
        "betas": [0.9, 0.95],
        "eps": 1e-8,
        "weight_decay": 0.1,
    }
    assert written["lr_schedule"] == {"linear": {"warmup": 200, "floor": 0}}
    assert written["compute"] == "bf16"
    assert migration.notes["train.steps"] == "torchtitan's default"


def test_the_global_batch_is_accumulated(convert):
    """Local samples times ranks, as often as it takes."""
    written = train(convert, "[training]\nlocal_batch_size = 2\nglobal_batch_size = 64")
    assert (written["batch"], written["microbatch"]) == (64, 2)


@pytest.mark.parametrize("batch", [20, 8])
def test_a_global_batch_that_ranks_cannot_share_is_refused(convert, batch):
    """torchtitan refuses it too."""
    with pytest.raises(MigrationError, match="not a multiple of 2 samples on each of 8"):
        convert(f"[training]\nlocal_batch_size = 2\nglobal_batch_size = {batch}")


@pytest.mark.parametrize(
    ("name", "expected"), [("AdamW", Fate.CARRIED), ("Adam", Fate.CHANGED), ("Muon", Fate.IMPOSSIBLE)]
)
def test_the_optimizer(convert, name, expected):
    """Adam couples its decay."""
    assert fate(convert(f'[optimizer]\nname = "{name}"'), "optimizer.name") is expected


def test_betas_one_by_one(convert):
    """Each has its own setting there."""
    assert train(convert, "[optimizer]\nbeta2 = 0.99")["optimizer"]["adamw"]["betas"] == [0.9, 0.99]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ('decay_type = "cosine"\nmin_lr_factor = 0.1', {"cosine": {"warmup": 200, "floor": 0.1}}),
        ('decay_type = "linear"\nlr_min = 0.2', {"linear": {"warmup": 200, "floor": 0.2}}),
        ('decay_type = "sqrt"', {"linear": {"warmup": 200, "floor": 0}}),
    ],
)
def test_the_fall(convert, schedule, expected):
    """The floor is a fraction of the peak there as here."""
    assert train(convert, f"[lr_scheduler]\n{schedule}")["lr_schedule"] == expected


@pytest.mark.parametrize(
    ("ratio", "expected"), [(0.8, Fate.CARRIED), (0.9, Fate.CARRIED), (0.5, Fate.CHANGED)]
)
def test_a_stable_stretch_is_lost_and_its_length_is_said(convert, ratio, expected):
    """A fall of 80 steps after a warm-up of 20 leaves none of 100."""
    text = f"[training]\nsteps = 100\n[lr_scheduler]\nwarmup_steps = 20\ndecay_ratio = {ratio}"
    migration = convert(text)
    assert fate(migration, "lr_scheduler.decay_ratio") is expected
    if expected is Fate.CHANGED:
        assert "30 steps earlier" in reason(migration, "lr_scheduler.decay_ratio")


def test_a_warm_up_longer_than_the_run_is_cut_as_there(convert):
    """Our loader refuses one."""
    migration = convert("[training]\nsteps = 10\n[lr_scheduler]\nwarmup_steps = 200")
    assert migration.job["train"]["lr_schedule"]["linear"]["warmup"] == 10
    assert fate(migration, "lr_scheduler.warmup_steps") is Fate.CHANGED


@pytest.mark.parametrize(("limit", "clip"), [("0.5", 0.5), ("0", "off"), ("inf", "off")])
def test_clipping(convert, limit, clip):
    """Infinity is how it is switched off there."""
    assert train(convert, f"[training]\nmax_norm = {limit}")["clip"] == clip


def test_validation(convert):
    """The held-out part of the text is scored here."""
    text = "[validation]\nenable = true\nfreq = 5\nsteps = 3\ndataset = 'c4_validation'"
    migration = convert(text)
    assert migration.job["train"]["evaluate"] == {"every": 5, "batches": 3}
    assert fate(migration, "validation.dataset") is Fate.IMPOSSIBLE
    off = convert("[validation]\nenable = false\nfreq = 5")
    assert "evaluate" not in off.job["train"]


def test_the_seed_has_two_names(convert):
    """It moved to another section."""
    assert train(convert, "[training]\nseed = 3")["seed"] == 3
    assert train(convert, "[debug]\nseed = 4")["seed"] == 4
