"""The keys of a job one by one."""

from trimtab.spec import load_job
from trimtab.spec.migration.keys import keys_of

JOB = "run: small\nmodel: {preset: gpt-3m}\ndata: {text: python-stdlib}\ntrain: {steps: 10}\n"


def keys(*overrides):
    loaded = load_job(JOB, source="job.yaml", overrides=overrides, read=lambda path: "")
    return {key.path: key for key in keys_of(loaded)}


def test_what_nobody_wrote_is_a_default():
    """A writer passes over most of them."""
    found = keys("train.clip=0.5")
    assert not found["train.clip"].is_default
    assert found["train.seed"].is_default


def test_what_auto_was_resolved_to_has_its_number():
    """Other systems have no auto."""
    found = keys()["train.microbatch"]
    assert found.value == 8
    assert found.is_default


def test_formulas_are_no_keys():
    """Each statement meets its own fate."""
    assert "parallelism" not in keys("parallelism=MESH dp *")


def test_names_and_texts():
    """As a command line has them."""
    found = keys()["train.optimizer.adamw.betas"]
    assert (found.name, found.text) == ("betas", "0.9 0.95")
