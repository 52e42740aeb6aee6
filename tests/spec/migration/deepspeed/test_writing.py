"""Whole jobs as DeepSpeed configurations, and back.

Run with TRIMTAB_REGENERATE=1 to write the golden files anew, and review the difference.
"""

import json
import os
from pathlib import Path

import pytest

from tests.spec.migration.answers import fate, written
from tests.spec.migration.test_public_configurations import listed, migrated
from trimtab.spec import load_job
from trimtab.spec.language import preset_names, print_statement
from trimtab.spec.migration import (
    Export,
    Exportable,
    Fate,
    Migration,
    Source,
    exporter_for,
    render_job,
    render_table,
)
from trimtab.spec.migration.deepspeed import read_deepspeed, write_deepspeed

GOLDEN = Path(__file__).parents[3] / "golden" / "spec" / "migration" / "deepspeed" / "presets"
PUBLIC = listed("deepspeed")
MOE = ("model.experts=8", "model.top_k=2")
DEVICES = {"diloco": 16, "hierarchical": 16, "hsdp": 16, "megatron-3d": 32}
"""Those of presets that need more than 8."""


def export_of(migration: Migration) -> Export:
    loaded = load_job(render_job(migration), source="job.yaml", read=lambda path: "")
    return write_deepspeed(Exportable(loaded=loaded, name="job.yaml"))


def read_back(export: Export, devices: int) -> Migration:
    return read_deepspeed(Source(text=export.text, name="ds.json", devices=devices))


@pytest.mark.parametrize("configuration", PUBLIC, ids=str)
def test_a_public_configuration_comes_back(configuration):
    """Out and in again nothing is lost that had an equivalent."""
    first = migrated(configuration)
    second = read_back(export_of(first), configuration.devices)
    assert export_of(second).text == export_of(first).text
    kept = {
        key: value
        for key, value in first.job["train"].items()
        if key not in ("steps", "optimizer", "lr_schedule")
    }
    assert kept.items() <= second.job["train"].items()


@pytest.mark.parametrize("name", preset_names())
def test_every_statement_of_a_preset_meets_a_fate(export, name):
    """What the table leaves out nobody misses until it is too late."""
    exported = export(f"USE '{name}'()", keys=MOE if "expert" in name else (), devices=DEVICES.get(name, 8))
    text = exported.text + "\n" + render_table(exported)
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_each_formula_is_told_once(job):
    """In the order in which it was written."""
    formulas = (
        "MESH dp *, cp 2, tp 2",
        "SPLIT batch OVER dp",
        "SPLIT sequence OVER cp USING ulysses",
        "SPLIT heads, mlp OVER tp",
        "STORE grads, states OVER dp, cp",
        "REDUCE grads OVER dp, cp IN bf16",
        "RECOMPUTE activations",
        "KEEP states IN fp32",
        "COMPUTE layers WHERE layer < 2 IN fp32",
        "OFFLOAD states TO host",
        "OFFLOAD activations WHERE name LIKE '%.mlp_residual' TO host",
        "SEAL grads OVER dp",
        "RECOMPUTE activations WHERE layer < 2 ON node = 0",
    )
    loaded = job(*formulas)
    exported = write_deepspeed(Exportable(loaded=loaded, name="job.yaml"))
    told = [row.flag for row in exported.settings if " " in row.flag]
    assert told == [print_statement(statement) for statement in loaded.program.statements]


@pytest.mark.parametrize(
    ("condition", "interval"),
    [
        ("", 1),
        (" WHERE layer >= 0 AND NOT name LIKE '%.mlp_residual'", 1),
        (" WHERE layer IS NOT NULL", 1),
        (" WHERE kind = 'norm'", None),
        (" WHERE layer < 2", None),
    ],
)
def test_whole_layers_are_computed_again_in_pipelines(export, condition, interval):
    """Elsewhere the model's code says it."""
    formula = f"RECOMPUTE activations{condition}"
    pipeline = ("MESH pp 2, dp *", "SPLIT batch OVER dp", "SPLIT layers OVER pp")
    assert written(export(*pipeline, formula), "pipeline.activation_checkpoint_interval") == interval
    assert fate(export("MESH dp *", formula), formula) is Fate.IMPOSSIBLE


def test_the_file_is_json(export):
    """DeepSpeed reads nothing else."""
    assert json.loads(export().text)["train_batch_size"] == 32


def test_it_is_in_the_table_of_exporters(job):
    """Else the command line does not know it."""
    exported = exporter_for("deepspeed")(Exportable(loaded=job(), name="job.yaml"))
    assert exported.target == "DeepSpeed"
    assert exported.count(Fate.CARRIED) > 0
