"""Jobs that say ``parallelism: auto``."""

import json
from dataclasses import replace

import pytest

from tests.catalog.test_probes import PROBE
from trimtab.app.deciding import DECIDED, probe_file, read_decided_job
from trimtab.app.errors import JobReadError
from trimtab.app.job_reading import read_job

SEVEN = """\
run: seven
model: {preset: llama2-7b}
data: {text: python-stdlib, tokenizer: bytes, sequence: 4096}
train: {steps: 1000, batch: 64, compute: bf16}
orchestration: {devices: 8, cluster: 64xA100}
parallelism: auto
"""

SMALL = """\
run: small
model: {preset: gpt-3m}
data: {text: python-stdlib, tokenizer: bytes, sequence: 128}
train: {steps: 2, batch: 16}
orchestration: {devices: 4}
parallelism: auto
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Nobody has measured this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_formulas_are_found_and_said_to_be(cli, desk):
    (desk / "seven.yaml").write_text(SEVEN)
    loaded = read_decided_job("seven.yaml")
    assert not loaded.is_undecided
    assert "MESH" in loaded.job.parallelism.text
    assert "  -- " in loaded.job.parallelism.text
    assert loaded.layout.mesh.num_devices == 8
    for key in ("parallelism", "train.microbatch", "fault_tolerance.shares"):
        assert loaded.origins[key] == DECIDED
    assert (
        "auto"
        not in loaded.resolved_yaml().split("parallelism:")[1].split("fault_tolerance")[0].split("#")[0]
    )
    found = cli("explain", "seven.yaml")
    assert found.code == 0
    assert "parallelism: auto: " in found.err
    assert "auto:1" in found.out


def test_what_is_found_is_what_plan_says_first(cli, desk):
    (desk / "seven.yaml").write_text(SEVEN)
    best = cli("plan", "seven.yaml", "--devices", "8", "--json").document["strategies"][0]
    assert read_decided_job("seven.yaml").job.parallelism.text.split() == best["formulas"].split()


def test_a_number_of_shares_is_kept(desk):
    (desk / "seven.yaml").write_text(SEVEN + "fault_tolerance: {shares: 8}\n")
    loaded = read_decided_job("seven.yaml")
    assert loaded.job.fault_tolerance.shares == 8
    assert loaded.origins["fault_tolerance.shares"] == "seven.yaml:7"


def test_a_machine_that_nobody_measured_is_told_to_be(cli, desk):
    (desk / "small.yaml").write_text(SMALL)
    found = cli("explain", "small.yaml")
    assert found.code == 2
    assert "small.yaml:6  parallelism is auto, and nothing is known of this machine's rates" in found.err
    assert "trimtab probe --devices 4" in found.err


def test_a_probe_decides_for_this_machine(desk):
    (desk / "small.yaml").write_text(SMALL)
    probe_file().parent.mkdir(parents=True)
    probe_file().write_text(json.dumps(replace(PROBE, runs=()).document()))
    loaded = read_decided_job("small.yaml")
    assert loaded.layout.mesh.num_devices == 4
    assert "MESH" in loaded.job.parallelism.text


def test_there_may_be_more_devices_than_samples(desk):
    """Only the planner knows how many of them are replicas."""
    (desk / "seven.yaml").write_text(
        SEVEN.replace("devices: 8", "devices: 64").replace("batch: 64", "batch: 16")
    )
    loaded = read_decided_job("seven.yaml")
    assert loaded.layout.mesh.num_devices == 64
    assert loaded.job.train.batch == 16


def test_a_probe_of_fewer_ranks_does_not_decide(cli, desk):
    (desk / "small.yaml").write_text(SMALL.replace("devices: 4", "devices: 8"))
    probe_file().parent.mkdir(parents=True)
    probe_file().write_text(json.dumps(replace(PROBE, runs=()).document()))
    found = cli("explain", "small.yaml")
    assert found.code == 2
    assert "measured with fewer ranks than 8" in found.err


def test_one_device_needs_no_search(desk):
    (desk / "one.yaml").write_text(SMALL.replace("devices: 4", "devices: 1"))
    assert read_decided_job("one.yaml").layout.mesh.num_devices == 1


def test_where_nothing_fits_the_line_says_what_is_lacking(cli, desk):
    (desk / "seven.yaml").write_text(SEVEN.replace("llama2-7b", "llama3-405b"))
    found = cli("explain", "seven.yaml")
    assert found.code == 2
    assert "keeps every limit on 8 devices; the nearest lacks " in found.err


def test_where_nothing_divides_the_line_says_what_has_to(cli, desk):
    (desk / "seven.yaml").write_text(SEVEN.replace("devices: 8", "devices: 61"))
    found = cli("explain", "seven.yaml")
    assert found.code == 2
    assert "seven.yaml:6  parallelism is auto, and no layout divides: 61 devices" in found.err


def test_a_verb_that_takes_no_plan_refuses(desk):
    (desk / "seven.yaml").write_text(SEVEN)
    with pytest.raises(JobReadError, match=r"seven\.yaml:6  parallelism is auto, and this needs formulas"):
        read_job("seven.yaml")


def test_formulas_of_a_job_are_left_alone(desk):
    assert read_decided_job("job.yaml") == read_job("job.yaml")
