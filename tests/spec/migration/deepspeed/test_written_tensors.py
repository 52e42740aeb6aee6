"""Splits of parameters by name as specs of AutoTP."""

import pytest

from tests.spec.migration.answers import fate, written
from trimtab.spec.migration import Fate

SPECS = "tensor_parallel.partition_config.layer_specs"
DEFAULTS = "tensor_parallel.partition_config.use_default_specs"
TENSOR = ("MESH dp *, tp 4", "SPLIT batch OVER dp")


def split(dim, condition):
    return f"SPLIT {dim} OF params WHERE {condition} OVER tp"


@pytest.mark.parametrize(
    ("dim", "pattern", "expression", "side"),
    [
        ("heads", "%.o_proj.weight", r".*\.o.proj\.weight$", "row"),
        ("kv_heads", "%.k_proj.weight", r".*\.k.proj\.weight$", "column"),
        ("mlp", "%.dense_4h_to_h.weight", r".*\.dense.4h.to.h\.weight$", "row"),
        ("vocab", "%lm_head%", r".*lm.head.*", "column"),
        ("embed", "%lm_head%", r".*lm.head.*", "row"),
    ],
)
def test_a_matrix_is_cut_on_the_side_of_its_dim(export, dim, pattern, expression, side):
    """Cut on the other side, products would be wrong."""
    formula = split(dim, f"name LIKE '{pattern}'")
    exported = export(*TENSOR, formula)
    assert written(exported, SPECS) == [{"patterns": [expression], "partition_type": side}]
    assert written(exported, "tensor_parallel.autotp_size") == 4
    assert fate(exported, formula) is Fate.CARRIED


def test_the_last_statement_is_the_first_spec(export):
    """There the first match counts, here the last."""
    first = split("mlp", "name LIKE '%proj.weight'")
    names = ("%.up_proj.weight", "%.down_proj.weight")
    formulas = [split("mlp", f"name LIKE '{name}'") for name in names]
    exported = export(*TENSOR, *formulas)
    assert [spec["partition_type"] for spec in written(exported, SPECS)] == ["row", "column"]
    assert fate(export(*TENSOR, first), first) is Fate.IMPOSSIBLE


def test_names_left_out_are_skipped_first(export):
    """A spec that skips them must match before the others do."""
    condition = "(name LIKE '%.w1.weight' OR name LIKE '%.w2.weight') AND name NOT LIKE '%.shared.%'"
    exported = export(*TENSOR, split("mlp", condition))
    kinds = [spec["partition_type"] for spec in written(exported, SPECS)]
    assert kinds == ["skip", "column", "row"]


@pytest.mark.parametrize(("more", "expected"), [((), False), (("SPLIT heads, mlp OVER tp",), True)])
def test_built_in_specs_stand_beside_if_matrices_are_split_by_kind(export, more, expected):
    """Without them the rest would be whole."""
    exported = export(*TENSOR, *more, split("vocab", "name LIKE '%lm_head.weight'"))
    assert written(exported, DEFAULTS) is expected


@pytest.mark.parametrize(
    "condition",
    ["layer < 2", "name LIKE '%.o_proj.weight' AND layer < 2", "name LIKE '%.mystery.weight'"],
)
def test_other_conditions_have_no_spec(export, condition):
    """A spec knows names of known matrices, nothing else."""
    formula = split("heads", condition)
    exported = export(*TENSOR, formula)
    assert written(exported, SPECS) is None
    assert fate(exported, formula) is Fate.IMPOSSIBLE
