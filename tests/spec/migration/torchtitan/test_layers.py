"""Recomputation, and types of products."""

import pytest

from tests.spec.migration.answers import fate, formulas
from trimtab.spec.migration import Fate

OUTPUTS = "AND name NOT LIKE '%.mlp_residual'"


def layers(migration):
    return [line for line in formulas(migration) if line.startswith(("RECOMPUTE", "COMPUTE"))]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("mode = 'none'", []),
        ("mode = 'full'", [f"RECOMPUTE activations WHERE layer >= 0 {OUTPUTS}"]),
        (
            "mode = 'selective'\nselective_ac_option = '2'",
            [f"RECOMPUTE activations WHERE layer % 2 = 1 {OUTPUTS}"],
        ),
        (
            "mode = 'selective'\nselective_ac_option = '1'",
            [f"RECOMPUTE activations WHERE layer >= 0 {OUTPUTS}"],
        ),
        (
            "mode = 'selective'\nselective_ac_option = 'op'",
            ["RECOMPUTE activations WHERE layer >= 0 AND (kind = 'norm' OR name LIKE '%.hidden')"],
        ),
        ("mode = 'memory_budget'\nmemory_budget = 0.5", []),
        ("", [f"RECOMPUTE activations WHERE layer % 2 = 1 {OUTPUTS}"]),
    ],
)
def test_what_is_computed_again(convert, mode, expected):
    """Every second layer counts from 1 there."""
    assert layers(convert(f"[activation_checkpoint]\n{mode}")) == expected


def test_a_budget_has_no_equivalent(convert):
    """Nothing here fills one."""
    migration = convert("[activation_checkpoint]\nmode = 'memory_budget'\nmemory_budget = 0.5")
    assert fate(migration, "activation_checkpoint.mode") is Fate.IMPOSSIBLE
    assert fate(migration, "activation_checkpoint.memory_budget") is Fate.IMPOSSIBLE


@pytest.mark.parametrize(
    "text",
    [
        '[model]\nconverters = ["float8"]',
        '[model]\nconverters = "float8"',
        "[float8]\nenable_float8_linear = true",
    ],
)
def test_float8(convert, text):
    """It was a switch, then a converter."""
    assert "COMPUTE layers IN fp8" in layers(convert(text))


def test_settings_of_float8_are_lost_only_where_it_is_on(convert):
    """Most files spell them out for a converter that they do not name."""
    gathered = "float8.enable_fsdp_float8_all_gather"
    section = "[float8]\nenable_fsdp_float8_all_gather = true\nfilter_fqns = ['output']"
    assert fate(convert(section), gathered) is Fate.IRRELEVANT
    on = convert(f'[model]\nconverters = ["float8"]\n{section}')
    assert fate(on, gathered) is Fate.IMPOSSIBLE
    assert fate(on, "float8.filter_fqns") is Fate.IMPOSSIBLE


def test_another_converter_has_no_equivalent(convert):
    """mx is a type of its own."""
    migration = convert('[model]\nconverters = ["mx"]')
    assert fate(migration, "model.converters") is Fate.IMPOSSIBLE


@pytest.mark.parametrize(("written", "expected"), [("true", Fate.IMPOSSIBLE), ("false", Fate.IRRELEVANT)])
def test_compilation(convert, written, expected):
    """A slower step must not come as a surprise."""
    assert fate(convert(f"[training]\ncompile = {written}"), "training.compile") is expected
