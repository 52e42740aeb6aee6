"""A run that begins with the weights of a folder, and gives its own away as one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import TINY, Trimtab
from tests.runtime.weights.conftest import RandomWeights
from trimtab.catalog import network
from trimtab.runtime.weights.writing import write_folder

pytestmark = pytest.mark.process

MODEL = network("llama-3m", layers=2, embed=32, heads=4, kv_heads=2, mlp=48, context=64)
STILL = (
    "--set",
    "train.optimizer.adamw.lr=1e-30",
    "--set",
    "train.steps=2",
    "--set",
    "orchestration.devices=2",
)
"""So small a rate that no weight changes its bits; zeros would."""


@pytest.fixture
def base(workplace: Path) -> Iterator[Path]:
    """A folder `base`, and a job in another folder that names it."""
    folder, jobs = workplace / "base", workplace / "jobs"
    write_folder(folder, MODEL, RandomWeights(MODEL), max_shard_bytes=40_000)
    jobs.mkdir()
    job = TINY.replace(
        "{preset: gpt-3m, layers: 2, embed: 64, heads: 4, mlp: 128, dropout: 0.1}", "{folder: ../base}"
    )
    (jobs / "tune.yaml").write_text(job % {"text": "text"}, encoding="utf-8")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(jobs)


@pytest.mark.slow
def test_a_run_begins_where_the_folder_ends(trimtab: Trimtab, workplace: Path, base: Path) -> None:
    """Not with random weights under the same name; and what it gives away is that folder again, bit for bit."""
    ran = trimtab("run", "jobs/tune.yaml", "--json", "--set", "fault_tolerance.checkpoint.every=1", *STILL)
    name = ran.document["run"]
    trimtab("checkpoints", "export", name, "--format", "huggingface", "--to", f"exported/{name}")
    exported = load_file(workplace / "exported" / name / "model.safetensors")
    files = [load_file(path) for path in base.glob("*.safetensors")]
    expected = {name: tensor for tensors in files for name, tensor in tensors.items()}
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[key], expected[key]) for key in expected)
    # The folder was needed once.
    shutil.rmtree(base)
    resumed = trimtab("resume", name, "--json", "--set", "train.steps=3")
    assert resumed.document["steps"] == 3


def test_weights_that_do_not_fit_stop_a_run_before_it_is_one(
    trimtab: Trimtab, workplace: Path, base: Path
) -> None:
    """Everything is told at once, and no folder of a run is left behind."""
    before = sorted((workplace / "runs").glob("*"))
    refused = trimtab("run", "jobs/tune.yaml", "--set", "model.layers=1", "--set", "model.mlp=32", check=2)
    assert "base: its weights cannot be taken" in refused.stderr
    assert "extra: model.layers.1.mlp.up_proj.weight" in refused.stderr
    assert "shape of model.layers.0.mlp.up_proj.weight: [48, 32]" in refused.stderr
    assert sorted((workplace / "runs").glob("*")) == before


def test_a_folder_without_weights_may_give_its_shape(trimtab: Trimtab, base: Path) -> None:
    """Training a published network from the beginning needs no download of what it was trained to."""
    for path in base.glob("*.safetensors*"):
        path.unlink()
    one = ("--set", "orchestration.devices=1", "--set", "train.steps=2")
    ran = trimtab("run", "jobs/tune.yaml", "--json", "--set", "model.weights=random", *one)
    assert ran.document["state"] == "done"
