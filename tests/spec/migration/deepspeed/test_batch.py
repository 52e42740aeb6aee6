"""The batch: two of three settings give the third, and what contradicts itself is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spec.migration.answers import fate, reason
from trimtab.spec.constants import auto_shares
from trimtab.spec.migration import Fate, MigrationError
from trimtab.spec.migration.deepspeed.batch import shares_for

TOTAL, MICRO, ACCUMULATION = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
)  # fmt: skip


def train(migration):
    return migration.job["train"]["batch"], migration.job["train"]["microbatch"]


def text(**numbers: object) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in numbers.items()) + "}"


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({TOTAL: 64, MICRO: 4, ACCUMULATION: 2}, (64, 4)),
        ({TOTAL: 64, MICRO: 4}, (64, 4)),
        ({TOTAL: 64, ACCUMULATION: 2}, (64, 4)),
        ({MICRO: 4, ACCUMULATION: 2}, (64, 4)),
        ({TOTAL: 64}, (64, 8)),
        ({MICRO: 4}, (32, 4)),
    ],
)
def test_what_is_missing_follows(convert_text, numbers, expected):
    """Source of the rule: DeepSpeed, deepspeed/runtime/config.py."""
    assert train(convert_text(text(**numbers))) == expected


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ({TOTAL: 60, MICRO: 4, ACCUMULATION: 2}, "not train_micro_batch_size_per_gpu 4 times"),
        ({TOTAL: 60, MICRO: 8}, "60, which is not"),
        ({TOTAL: 4}, "4, which is not"),
        ({ACCUMULATION: 2}, "needs one of them"),
        ({}, "needs one of them"),
        ({MICRO: 0}, "must be above 0"),
        ({TOTAL: -8, MICRO: 1}, "must be above 0"),
        ({MICRO: '"four"'}, "takes a number there"),
    ],
)
def test_what_deepspeed_refuses_is_refused(convert_text, numbers, why):
    """A batch that DeepSpeed never trained must not become ours."""
    with pytest.raises(MigrationError, match=why):
        convert_text(text(**numbers))


def test_devices_follow_from_three_numbers(convert_text):
    """The file says how many devices train if it says all three."""
    migration = convert_text(text(**{TOTAL: 96, MICRO: 4, ACCUMULATION: 2}), devices=None)
    assert migration.job["orchestration"]["devices"] == 12
    assert not [warning for warning in migration.warnings if "how many devices" in warning]


def test_devices_that_nobody_says_are_the_fewest_and_said(convert_text):
    """A guess in silence would be found on the bill."""
    migration = convert_text(text(**{MICRO: 4}), devices=None)
    assert migration.job["orchestration"]["devices"] == 1
    assert [warning for warning in migration.warnings if "how many devices" in warning]


def test_auto_is_hugging_faces_default_and_said(convert_text):
    """What the file leaves to TrainingArguments is theirs to say; the job must not pretend to know it."""
    auto = '"auto"'
    migration = convert_text(text(**{TOTAL: auto, MICRO: auto, ACCUMULATION: auto}))
    assert train(migration) == (64, 8)
    for flag in (TOTAL, MICRO, ACCUMULATION):
        assert fate(migration, flag) is Fate.CHANGED
        assert "auto is" in reason(migration, flag)
    assert [warning for warning in migration.warnings if "left to Hugging Face" in warning]


def test_auto_beside_a_number_is_the_number(convert_text):
    """One of the three may be fixed while the others follow."""
    assert train(convert_text(text(**{TOTAL: '"auto"', MICRO: 2, ACCUMULATION: '"auto"'}))) == (16, 2)


ELASTIC = (
    '{"elasticity": {"enabled": true, "max_train_batch_size": 1000, "micro_batch_sizes": [6, 8], "%s": %s}}'
)


def test_elasticity_gives_the_largest_batch_that_fits(convert_text):
    """The batch is a constant of a run here, so one that DeepSpeed allows must be chosen."""
    migration = convert_text(ELASTIC % ("min_gpus", 1))
    assert train(migration) == (
        960,
        8,
    )  # 20 times 6 x 8 replicas and 15 times 8 x 8: the larger of equal sizes
    assert fate(migration, "elasticity.max_train_batch_size") is Fate.CHANGED
    assert fate(migration, "elasticity.min_gpus") is Fate.IRRELEVANT


def test_elasticity_beside_a_batch_is_refused_as_deepspeed_does(convert_text):
    """One of the two would be ignored."""
    with_batch = ELASTIC[:-1] % ("min_gpus", 1) + ', "train_batch_size": 8}'
    with pytest.raises(MigrationError, match="ignore_non_elastic_batch_info"):
        convert_text(with_batch)
    overruled = ELASTIC[:-1] % ("ignore_non_elastic_batch_info", "true") + ', "train_batch_size": 8}'
    assert fate(convert_text(overruled), TOTAL) is Fate.IRRELEVANT


def test_elasticity_that_fits_nothing_is_refused(convert_text):
    """A batch of no samples trains nothing."""
    with pytest.raises(MigrationError, match="stays within"):
        convert_text(ELASTIC % ("min_gpus", 1), devices=1000)


@given(micro=st.integers(1, 16), parts=st.integers(1, 64), replicas=st.integers(1, 64))
def test_shares_hold_whole_microbatches(micro, parts, replicas):
    """The loader refuses a share that no microbatch divides."""
    batch = micro * parts
    shares = shares_for(batch=batch, micro=micro, replicas=replicas)
    shares = shares or auto_shares(batch=batch, devices=replicas)
    assert batch % (shares * micro) == 0


def test_a_batch_that_no_job_can_have_is_refused(convert_text):
    """The loader would refuse it at a line that the user never wrote."""
    with pytest.raises(MigrationError, match="at most 16777216"):
        convert_text(text(**{MICRO: 10**8}))
