"""The verb `probe`, and plans for the machine that it measured."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from trimtab.catalog import read_probe
from trimtab.cost.closed_form import Cases


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trimtab", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
    )


@pytest.mark.slow
@pytest.mark.process
def test_a_probe_measures_and_a_plan_reads_it(desk):
    ran = call(desk, "probe", "--devices", "2", "--out", "here.json", "--json")
    assert ran.returncode == 0, ran.stderr
    probe = read_probe((desk / "here.json").read_text(), source="here.json")
    assert json.loads(ran.stdout) == json.loads((desk / "here.json").read_text())
    assert (desk / "cache/trimtab/probe.json").read_text() == (desk / "here.json").read_text()
    assert probe.num_devices == len(probe.flops_per_s) == 2
    assert all(rate > 1e9 for rate in (*probe.flops_per_s, *probe.memory_bytes_per_s, probe.link_bytes_per_s))
    assert {time.name for time in probe.collectives} == {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
    }  # fmt: skip
    assert {time.ranks for time in probe.collectives} == {2}
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        times = [time.seconds for time in probe.collectives if time.name == name]
        assert times[-1] > times[0] > 0
    assert all(1e9 < rate < 2 * max(probe.flops_per_s) for rate in probe.attention_flops_per_s)
    assert 1e-8 < probe.kernel_s < 1e-3
    (pair,) = probe.pairs
    assert (pair.first, pair.second) == (0, 1)
    assert pair.latency_s > 0
    assert [run.name for run in probe.runs] == [
        "replicas",
        "one microbatch",
        "states in pieces",
        "stored in pieces",
        "tensors and sequences cut",
        "stages",
        "replicas of a wide one",
    ]
    for run in probe.runs:
        assert run.step_s > 0
        assert set(run.columns) == {field.name for field in fields(Cases)}

    planned = call(desk, "plan", "job.yaml", "--cluster", "this-machine", "--probe", "here.json", "--json")
    assert planned.returncode == 0, planned.stderr
    document = json.loads(planned.stdout)
    assert document["devices"] == [2]
    assert "a probe of this machine" in document["learned_from"]
    assert document["strategies"][0]["step_s"]["expected"] > 0


@pytest.mark.slow
@pytest.mark.process
def test_a_single_rank_is_probed_and_planned_for(desk):
    """Nobody to talk to is no reason to fail; two ranks and their real steps are in the long suite."""
    ran = call(desk, "probe", "--devices", "1", "--out", "here.json")
    assert ran.returncode == 0, ran.stderr
    probe = read_probe((desk / "here.json").read_text(), source="here.json")
    assert (probe.num_devices, probe.collectives, probe.pairs) == (1, (), ())
    assert 1e9 < probe.attention_flops_per_s[0] < 2 * probe.flops_per_s[0]
    assert [run.name for run in probe.runs] == ["replicas", "one microbatch", "replicas of a wide one"]
    assert "attention" in ran.stdout
    planned = call(desk, "plan", "job.yaml", "--cluster", "this-machine", "--probe", "here.json", "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["devices"] == [1]


def test_a_file_that_is_no_probe_is_refused(cli, desk):
    (desk / "no.json").write_text("{}")
    found = cli("plan", "job.yaml", "--probe", "no.json")
    assert found.code == 2
    assert "no.json: not a probe of a machine" in found.err
    assert "cannot read a probe" in cli("plan", "job.yaml", "--probe", "none.json").err


def test_too_many_ranks_are_refused(cli, desk):
    found = cli("probe", "--devices", "400")
    assert found.code == 2
    assert "it starts 1 to 16 processes" in found.err
