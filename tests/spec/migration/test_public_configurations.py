"""Configurations in public use, imported: the job file and the table of each are pinned.

Run with TRIMTAB_REGENERATE=1 to write them anew, and review the difference.
"""

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.spec.migration.conftest import NETWORKS
from trimtab.catalog import Machine, cluster
from trimtab.plan.compiling import compile_program
from trimtab.plan.layout import network_of
from trimtab.plan.physical import Plan
from trimtab.plan.training import Training
from trimtab.spec import LoadedJob, StrategyError, load_job, parse_strategy, print_program
from trimtab.spec.migration import Fate, Migration, Source, importer_for, render_job, render_table

HERE = Path(__file__).parent / "configurations"
GOLDEN = Path(__file__).parents[2] / "golden" / "spec" / "migration"
SUFFIXES = {"deepspeed": "json", "torchtitan": "toml"}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One row of the README of a system's folder."""

    system: str
    name: str
    devices: int

    def __str__(self) -> str:
        return f"{self.system}-{self.name}"

    @property
    def path(self) -> Path:
        return HERE / self.system / f"{self.name}.{SUFFIXES[self.system]}"

    def golden(self, suffix: str) -> Path:
        return GOLDEN / self.system / f"{self.name}.{suffix}"


def listed(system: str) -> list[Configuration]:
    rows = re.findall(
        r"^\| ([a-z0-9-]+) \| ([0-9]+) \|", (HERE / system / "README.md").read_text(), re.MULTILINE
    )
    return [Configuration(system=system, name=name, devices=int(devices)) for name, devices in rows]


ALL = [configuration for system in SUFFIXES for configuration in listed(system)]


@cache
def migrated(configuration: Configuration) -> Migration:
    source = Source(
        text=configuration.path.read_text(),
        name=configuration.path.name,
        devices=configuration.devices,
        networks=NETWORKS,
    )
    return importer_for(configuration.system)(source)


def planned(loaded: LoadedJob) -> Plan:
    job = loaded.job
    found, shares = network_of(job), job.fault_tolerance.shares
    assert found is not None
    training = Training(
        network=found,
        batch=job.train.batch,
        microbatch=job.train.microbatch,
        sequence=job.data.sequence,
        shares=shares if isinstance(shares, int) else None,
        compute=job.train.compute.value,
        num_states=2,
    )
    machine = Machine(num_devices=8, cores=8, memory_bytes=64 * 2**30)
    on = cluster("512xH100", machine=machine)
    return compile_program(loaded.program, training, mesh=loaded.layout.mesh, cluster=on)


def check(configuration: Configuration, suffix: str, text: str) -> None:
    golden = configuration.golden(suffix)
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("configuration", ALL, ids=str)
def test_the_job_file(configuration):
    """What a team gets when it moves in was reviewed line by line."""
    check(configuration, "yaml", render_job(migrated(configuration)))


@pytest.mark.parametrize("configuration", ALL, ids=str)
def test_the_table(configuration):
    """Each setting's fate and reason was reviewed."""
    check(configuration, "txt", render_table(migrated(configuration)))


@pytest.mark.parametrize("configuration", ALL, ids=str)
def test_the_job_file_loads(configuration):
    """A job that our own loader refuses is no way to move in."""
    migration = migrated(configuration)
    loaded = load_job(render_job(migration), source="job.yaml", read=lambda path: "")
    assert loaded.job.orchestration.devices == configuration.devices
    assert print_program(loaded.program) == print_program(parse_strategy(migration.formulas, source="x"))


@pytest.mark.parametrize("configuration", ALL, ids=str)
def test_the_job_can_be_planned(configuration):
    """Or a warning says what must be set first."""
    migration = migrated(configuration)
    told = any("set model.module" in said or "microbatches that" in said for said in migration.warnings)
    loaded = load_job(render_job(migration), source="job.yaml", read=lambda path: "")
    if told:
        with pytest.raises(StrategyError):
            planned(loaded)
    else:
        assert planned(loaded).mesh == loaded.layout.mesh


@pytest.mark.parametrize("configuration", ALL, ids=str)
def test_every_formula_is_in_canonical_form(configuration):
    """What the importer writes reads as what the printer prints."""
    formulas = migrated(configuration).formulas
    assert print_program(parse_strategy(formulas, source="x")) == formulas


@pytest.mark.parametrize("configuration", ALL, ids=str)
def test_no_setting_is_unknown_but_those_that_are_wrong_there_too(configuration):
    """Public configurations hold few settings that their own system does not know."""
    unknown = {
        setting.flag
        for setting in migrated(configuration).settings
        if setting.fate is Fate.IMPOSSIBLE and "has no such setting" in setting.reason
    }
    assert unknown <= {"zero_optimization.aio"}


def test_every_file_is_listed_with_its_source():
    """A configuration without a source cannot be checked against it."""
    for system, suffix in SUFFIXES.items():
        files = {path.stem for path in (HERE / system).glob(f"*.{suffix}")}
        assert files == {configuration.name for configuration in listed(system)}
        assert len(files) >= 10
