"""A job as a line for torchrun."""

import shlex

import pytest

from trimtab.runtime import elastic_worker
from trimtab.spec import load_job
from trimtab.spec.migration import Exportable, Fate, exporter_for

JOB = """
run: quick
model: {preset: gpt-3m}
data: {text: python-stdlib}
train: {steps: 6, batch: 336}
orchestration: {engine: %s, devices: %d, grace: 1500ms}
fault_tolerance: {shares: "off", restarts: {node_loss: 7}}
"""


def export(devices=6, engine="torchrun", name="my job.yaml", per_node=None):
    loaded = load_job(JOB % (engine, devices), source="job.yaml", read=lambda path: "")
    return exporter_for("torchrun")(Exportable(loaded=loaded, name=name, devices_per_node=per_node))


def test_the_line():
    """Given on every host it starts the ranks; each word is torchrun's own."""
    words = shlex.split(export(devices=16, per_node=8).text)
    assert words == [
        "torchrun", "--nnodes", "2", "--nproc-per-node", "8", "--max-restarts", "7", "--shutdown-timeout", "2",
        "--rdzv-id", "quick", "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:PORT",
        "-m", elastic_worker.__name__, "my job.yaml",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("devices", "per_node", "nodes", "each"),
    [(6, None, 1, 6), (16, None, 2, 8), (12, 8, 2, 6), (7, 4, 7, 1), (1, 8, 1, 1)],
)
def test_ranks_fill_machines(devices, per_node, nodes, each):
    """torchrun starts as many ranks on every host."""
    text = export(devices=devices, per_node=per_node).text
    assert f"--nnodes {nodes} --nproc-per-node {each} " in text


def test_a_guess_is_told():
    """Eight devices a machine is what most have, and not all."""
    assert export(devices=16).warnings
    assert not export(devices=16, per_node=8).warnings
    assert not export(devices=6).warnings


def test_another_engine_is_told():
    """Under torchrun nothing survives inside a step."""
    (setting,) = [found for found in export(engine="local").settings if found.flag == "orchestration.engine"]
    assert setting.fate is Fate.CHANGED
    assert "orchestration.engine" not in {found.flag for found in export().settings}
