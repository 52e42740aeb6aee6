"""AutoTP."""

import pytest

from tests.spec.migration.answers import fate, formulas, reason
from trimtab.spec.migration import Fate


def tensor(convert, **section):
    return convert({"tensor_parallel": {"autotp_size": 4, **section}})


def split(migration):
    return [line for line in formulas(migration) if line.endswith("OVER tp")]


def specs(*layers, **section):
    return {"partition_config": {"layer_specs": list(layers), "use_default_specs": False, **section}}


def spec(pattern, kind="column", **more):
    return {"patterns": [pattern], "partition_type": kind, **more}


def test_layers_are_split_and_the_ends_stay_whole(convert):
    """AutoTP leaves embedding and head alone; a job that splits them has other collectives."""
    migration = tensor(convert)
    assert split(migration) == ["SPLIT heads, mlp OVER tp"]
    assert [warning for warning in migration.warnings if "embedding and head whole" in warning]


@pytest.mark.parametrize(
    ("pattern", "kind", "dim"),
    [
        (r".*\.q_proj\.weight$", "column", "heads"),
        (r".*\.k_proj\.weight$", "column", "kv_heads"),
        (r".*\.o_proj\.weight$", "row", "heads"),
        (r".*\.down_proj\.weight$", "row", "mlp"),
        (r".*lm_head\.weight$", "column", "vocab"),
        (r".*lm_head\.weight$", "row", "embed"),
        (r".*embed_tokens\.weight$", "column", "embed"),
    ],
)
def test_a_pattern_names_the_dim_that_its_layer_cuts(convert, pattern, kind, dim):
    """Column and row are places in a matrix; a dim is what the place means."""
    (line,) = split(tensor(convert, **specs(spec(pattern, kind))))
    assert line.startswith(f"SPLIT {dim} OF params WHERE name LIKE '%")


def test_one_spec_over_several_layers_has_a_statement_for_each_dim(convert):
    """Queries have other heads than keys."""
    lines = split(tensor(convert, **specs(spec(r".*\.[qkv]_proj\.weight$"))))
    assert lines == [
        "SPLIT heads OF params WHERE name LIKE '%.q_proj.weight' OVER tp",
        "SPLIT kv_heads OF params WHERE name LIKE '%.k_proj.weight' OR name LIKE '%.v_proj.weight' OVER tp",
    ]


def test_the_first_spec_that_matches_wins_there_and_the_last_statement_here(convert):
    """In the order of the file the general rule would replace the special one."""
    migration = tensor(convert, **specs(spec(r".*\.up_proj\.weight$"), spec(r".*\.0\.w1\.weight$")))
    assert split(migration) == [
        "SPLIT mlp OF params WHERE name LIKE '%.0.w1.weight' OVER tp",
        "SPLIT mlp OF params WHERE name LIKE '%.up_proj.weight' OVER tp",
    ]


def test_what_an_earlier_spec_leaves_whole_later_ones_leave_out(convert):
    """No statement takes a split back."""
    migration = tensor(
        convert,
        **specs(
            spec(r".*\.first\.w1\.weight$"), spec(r".*\.0\.w1\.weight$", "skip"), spec(r".*\.w1\.weight$")
        ),
    )
    assert split(migration) == [
        "SPLIT mlp OF params WHERE name LIKE '%.w1.weight' AND name NOT LIKE '%.0.w1.weight' OVER tp",
        "SPLIT mlp OF params WHERE name LIKE '%.first.w1.weight' OVER tp",
    ]


def test_packed_matrices_are_changed(convert):
    """A packed matrix cut as one gives each device a part of the first matrix only."""
    flag = "tensor_parallel.partition_config.layer_specs[0]"
    migration = tensor(convert, **specs(spec(r".*\.qkv_proj\.weight$", shape=[3, -1])))
    assert fate(migration, flag) is Fate.CHANGED
    assert "packed" in reason(migration, flag)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (spec(r".*\.mixer\.weight$"), "only your model knows"),
        (spec(r"(a|b)*"), "LIKE cannot say"),
        ({"partition_type": "row"}, "list of patterns"),
        (spec("x", "diagonal"), "column, row and skip"),
    ],
)
def test_what_cannot_be_said_is_named(convert, written, why):
    """A spec that is dropped leaves a tensor whole."""
    flag = "tensor_parallel.partition_config.layer_specs[0]"
    migration = tensor(convert, **specs(written))
    assert fate(migration, flag) is Fate.IMPOSSIBLE
    assert why in reason(migration, flag)


def test_a_preset_is_the_split_of_layers_with_specs_on_top(convert):
    """The specs of the file go before those of the preset."""
    section = {"preset_model": "llama", **specs(spec(r".*lm_head\.weight$"), use_default_specs=True)}
    assert split(tensor(convert, **section)) == [
        "SPLIT heads, mlp OVER tp",
        "SPLIT vocab OF params WHERE name LIKE '%lm_head.weight' OVER tp",
    ]


def test_one_part_is_no_split(convert):
    """The section may stand there switched off."""
    migration = convert({"tensor_parallel": {"autotp_size": 0, "preset_model": "llama"}})
    assert split(migration) == []
    assert fate(migration, "tensor_parallel.preset_model") is Fate.IRRELEVANT
