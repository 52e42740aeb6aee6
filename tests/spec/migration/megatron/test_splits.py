"""What is divided over which axis."""

import pytest

from tests.spec.migration.conftest import fates, loaded
from trimtab.spec.migration import Fate


@pytest.mark.parametrize(
    ("flags", "formula"),
    [
        ("--tensor-model-parallel-size 2", "SPLIT heads, mlp, vocab OVER tp"),
        (
            "--tensor-model-parallel-size 2 --sequence-parallel",
            "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp",
        ),
        ("--context-parallel-size 2", "SPLIT sequence OVER cp USING ring"),
        ("--context-parallel-size 2 --cp-comm-type a2a", "SPLIT sequence OVER cp USING ulysses"),
        ("--context-parallel-size 2 --cp-comm-type allgather", "SPLIT sequence OVER cp USING allgather"),
        ("--ds-sequence-parallel-size 2", "SPLIT sequence OVER cp USING ulysses"),
        ("--expert-model-parallel-size 2 --num-experts 4", "SPLIT experts OVER ep"),
        ("--pipeline-model-parallel-size 2", "SPLIT layers OVER pp USING 1f1b"),
    ],
)
def test_each_kind_of_parallelism(migrate, flags, formula):
    """One formula for each degree, and the loader takes it."""
    migration = migrate(f"{flags} --global-batch-size 8")
    assert formula in migration.formulas.splitlines()
    assert all(fates(migration)[word].fate is Fate.CARRIED for word in flags.split() if word.startswith("--"))
    loaded(migration)


@pytest.mark.parametrize(
    "name",
    ["--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size",
     "--expert-model-parallel-size", "--num-distributed-optimizer-instances"],
)  # fmt: skip
def test_one_way_is_no_formula(migrate, name):
    """Scripts name all degrees, and most are 1."""
    migration = migrate(f"{name} 1")
    assert migration.formulas == "MESH dp *\nSPLIT batch OVER dp\n"


def test_sequence_parallelism_needs_tensor_parallelism(migrate):
    """Megatron-LM turns it off then; a formula over an axis that is none would be refused."""
    assert fates(migrate("--sequence-parallel"))["--sequence-parallel"].fate is Fate.IRRELEVANT


def test_ways_by_layer(migrate):
    """Megatron takes a way for each layer; layers of the other way get a formula of their own."""
    ways = " ".join(["p2p"] * 3 + ["a2a"] * 5)
    migration = migrate(f"--context-parallel-size 2 --cp-comm-type {ways}")
    assert migration.formulas.splitlines()[2:] == [
        "SPLIT sequence OVER cp USING ring",
        "SPLIT sequence OF activations WHERE layer BETWEEN 3 AND 7 OVER cp USING ulysses",
    ]


def test_two_levels_become_one_ring_and_are_told(migrate):
    """Inside a machine all to all, between machines a ring: no formula says it."""
    flags = "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2"
    migration = migrate(flags)
    assert "SPLIT sequence OVER cp USING ring" in migration.formulas
    assert fates(migration)["--cp-comm-type"].fate is Fate.CHANGED
    assert fates(migration)["--hierarchical-context-parallel-sizes"].fate is Fate.IMPOSSIBLE
