"""What the writers know of a job before they write."""

import pytest

from trimtab.spec.migration.deepspeed.facts import facts_of


@pytest.mark.parametrize(
    ("batch", "shares", "microbatch", "expected"),
    [
        (64, 8, 2, (64, 2, 4)),
        (64, 8, 8, (64, 8, 1)),
        (48, 12, 4, (48, 3, 2)),
        (20, 10, 2, (24, 1, 3)),
        (8, 8, 1, (8, 1, 1)),
    ],
)
def test_samples_accumulation_and_devices_make_the_batch(job, batch, shares, microbatch, expected):
    """DeepSpeed refuses a batch that is not their product."""
    keys = (
        f"train.batch={batch}",
        f"train.microbatch={microbatch}",
        f"fault_tolerance.shares={shares}",
    )
    facts = facts_of(job(keys=keys))
    assert (facts.batch, facts.microbatch, facts.accumulation) == expected
    assert facts.batch == facts.microbatch * facts.accumulation * facts.replicas


def test_an_axis_of_named_parameters_is_one_of_tensors(job):
    """It has no SPLIT of its own."""
    formula = "SPLIT heads OF params WHERE name LIKE '%.o_proj.weight' OVER tp"
    facts = facts_of(job("MESH dp *, tp 2", "SPLIT batch OVER dp", formula))
    assert facts.roles.tensor == ("tp",)
    assert not facts.splits_by_kind


def test_tables_kept_in_bf16_in_part_do_not_count(job):
    """DeepSpeed keeps whole tables."""
    facts = facts_of(job("KEEP grads IN bf16", "KEEP states WHERE layer < 1 IN bf16"))
    assert facts.kept_in_bf16 == {"grads"}
