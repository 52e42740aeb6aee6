"""The type of matrix products."""

import pytest

from tests.spec.migration.conftest import fates, loaded
from trimtab.spec.migration import Fate


@pytest.mark.parametrize(
    ("flags", "compute", "formulas"),
    [
        ("", "fp32", []),
        ("--bf16", "bf16", []),
        ("--fp16", "bf16", []),
        ("--bf16 --fp8-format hybrid", "bf16", ["COMPUTE layers IN fp8"]),
        ("--bf16 --fp8-hybrid", "bf16", ["COMPUTE layers IN fp8"]),
        (
            "--bf16 --fp8-format e4m3 --first-last-layers-bf16",
            "bf16",
            ["COMPUTE layers IN fp8", "COMPUTE layers WHERE layer < 1 OR layer >= 7 IN bf16"],
        ),
        (
            "--bf16 --fp8-format e4m3 --first-last-layers-bf16 --num-layers-at-start-in-bf16 2 --num-layers-at-end-in-bf16 0",
            "bf16",
            ["COMPUTE layers IN fp8", "COMPUTE layers WHERE layer < 2 IN bf16"],
        ),
        ("--bf16 --first-last-layers-bf16 --num-layers-at-start-in-bf16 2", "bf16", []),
    ],
)
def test_types(migrate, flags, compute, formulas):
    """A layer that computes in another type than before loses digits that nobody gave up."""
    migration = migrate(flags)
    assert loaded(migration).job.train.compute.value == compute
    assert [line for line in migration.formulas.splitlines() if "COMPUTE" in line] == formulas


def test_what_is_not_carried_is_told(migrate):
    """fp16 becomes bf16, and the recipes of fp8 have no key."""
    found = fates(migrate("--fp16 --loss-scale 4096"))
    assert (found["--fp16"].fate, found["--loss-scale"].fate) == (Fate.CHANGED, Fate.IRRELEVANT)
    found = fates(migrate("--bf16 --fp8-format hybrid --fp8-recipe blockwise"))
    assert (found["--fp8-format"].fate, found["--fp8-recipe"].fate) == (Fate.CHANGED, Fate.IMPOSSIBLE)
    assert fates(migrate("--bf16 --fp8-recipe blockwise"))["--fp8-recipe"].fate is Fate.IRRELEVANT
