"""Which activations are computed again: the formulas applied to the rows of a network, and counted."""

import pytest

from tests.spec.migration.conftest import fates, loaded
from trimtab.plan.layout import network_of
from trimtab.plan.tables import Table, rows_of
from trimtab.spec.language import RecomputeStatement, compile_predicate
from trimtab.spec.migration import Fate


def kept(migration):
    """The activations that stay in memory, by name: those that no RECOMPUTE names."""
    job = loaded(migration)
    rows = rows_of(network_of(job.job), batch=1, sequence=128, num_states=2, compute="fp32")
    activations = [row for row in rows if row.table is Table.ACTIVATIONS]
    wheres = [found.where for found in job.program.statements if isinstance(found, RecomputeStatement)]
    assert all(where is not None for where in wheres)
    predicates = [compile_predicate(where) for where in wheres]
    return [row.name for row in activations if not any(holds(row.value) is True for holds in predicates)]


OUTSIDE = ["embedding", "final_norm", "logits"]


def borders(*layers):
    return ["embedding", *(f"layers.{layer}.mlp_residual" for layer in layers), "final_norm", "logits"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--recompute-granularity full --recompute-method uniform", borders(*range(8))),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            borders(*range(8)),
        ),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4", borders(3, 7)),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 3", borders(2, 5)),
        ("--checkpoint-activations", borders(*range(8))),
        (
            "--activations-checkpoint-method uniform --activations-checkpoint-num-layers 2",
            borders(1, 3, 5, 7),
        ),
    ],
)
def test_whole_layers(migrate, flags, expected):
    """Between two borders everything is computed again from the first: one border too few doubles the peak."""
    assert kept(migrate(flags)) == expected


@pytest.mark.parametrize(
    ("pipeline", "first_of_stages"),
    [
        ("", [0]),
        ("--pipeline-model-parallel-size 4", [0, 2, 4, 6]),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2", [0, 2, 4, 6]),
        ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3", [0, 3]),
    ],
)
def test_the_first_layers_of_each_stage(migrate, pipeline, first_of_stages):
    """The block method counts inside a stage, not inside the network."""
    flags = (
        "--recompute-granularity full --recompute-method block --recompute-num-layers 1 --global-batch-size 8"
    )
    names = kept(migrate(f"{flags} {pipeline}"))
    whole = [layer for layer in range(8) if f"layers.{layer}.attention.q" in names]
    assert whole == [layer for layer in range(8) if layer not in first_of_stages]
    assert all(f"layers.{layer}.mlp_residual" in names for layer in range(8))


@pytest.mark.parametrize(
    ("modules", "gone"),
    [
        ("mlp", {"mlp.up", "mlp.hidden"}),
        ("layernorm", {"attention_norm", "mlp_norm"}),
        ("core_attn mlp", {"mlp.up", "mlp.hidden"}),
        ("core_attn", set()),
    ],
)
def test_modules(migrate, modules, gone):
    """A module that is computed again there and kept here takes its memory unseen."""
    every = kept(migrate(""))
    names = kept(migrate(f"--recompute-granularity selective --recompute-modules {modules}"))
    assert {name for name in every if name not in names} == {
        f"layers.{n}.{part}" for n in range(8) for part in gone
    }


def test_modules_of_experts(migrate):
    """The router decides anew with the same numbers, and the experts compute again what they kept."""
    flags = "--num-experts 8 --recompute-granularity selective --recompute-modules moe"
    names = kept(migrate(flags))
    assert not [name for name in names if "experts" in name or "router" in name]
    assert "layers.0.mlp_norm" in names


def test_modules_that_no_network_here_has(migrate):
    """Multi-head latent attention is another network, and so is a dense layer among experts."""
    found = fates(migrate("--recompute-granularity selective --recompute-modules mla_up_proj mlp"))
    assert found["--recompute-modules"].fate is Fate.CHANGED
    assert "mla_up_proj" in found["--recompute-modules"].reason
    alone = fates(migrate("--recompute-granularity selective --recompute-modules mla_up_proj"))
    assert alone["--recompute-modules"].fate is Fate.IMPOSSIBLE


def test_the_scores_of_attention_are_never_kept(migrate):
    """--recompute-activations means them; nothing has to be said here, and the table says so."""
    migration = migrate("--recompute-activations")
    assert "RECOMPUTE" not in migration.formulas
    assert fates(migration)["--recompute-activations"].fate is Fate.IRRELEVANT


def test_a_method_without_a_granularity_does_nothing(migrate):
    """As in Megatron-LM, which refuses it; a formula would compute again what nobody asked for."""
    migration = migrate("--recompute-method uniform --recompute-num-layers 1")
    assert "RECOMPUTE" not in migration.formulas
    assert fates(migration)["--recompute-method"].fate is Fate.IRRELEVANT
