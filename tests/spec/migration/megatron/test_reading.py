"""Public trainings with Megatron-LM, from their settings to job files: the whole of each, word for word.

TRIMTAB_REGENERATE=1 writes the job files and tables anew.
"""

import os
import re
from pathlib import Path

import pytest

from tests.spec.migration.conftest import (
    CONFIGURATIONS,
    FACTS,
    NETWORKS,
    REFUSED,
    exportable,
    loaded,
    migrated,
)
from trimtab.spec.migration import Fate, MigrationError, exporter_for, importer_for, render_job, render_table
from trimtab.spec.migration.sources import Source

GOLDEN = Path(__file__).parents[3] / "golden" / "spec" / "migration" / "megatron"


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_job_file_and_table(name):
    """A formula, a number or a reason that changes unseen changes someone's training."""
    migration = migrated(name)
    check(f"{Path(name).stem}.yaml", render_job(migration))
    check(f"{Path(name).stem}.txt", render_table(migration))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_job_loads(name):
    """A job file that our own loader refuses, its formulas with it, moves nobody in."""
    migration = migrated(name)
    job = loaded(migration)
    assert job.job.run == migration.job["run"]
    assert job.job.train.batch == migration.job["train"]["batch"]
    assert len(job.program.statements) == len(migration.formulas.splitlines())


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_setting_is_dropped(name):
    """A flag that is missing in the table is a flag whose loss nobody sees: every word of the file that looks like
    a flag, and every key, stands there."""
    text = (FACTS / name).read_text(encoding="utf-8")
    found = {setting.flag.rpartition(".")[2] for setting in migrated(name).settings}
    words = "\n".join(line for line in text.splitlines() if not line.startswith("#")).split()
    flags = {word.split("=")[0].rstrip(":") for word in words if word.startswith("--")}
    keys = {
        line.split(":")[0].strip()
        for line in text.splitlines()[1:]
        if name.endswith(".yaml") and ": " in line and not line.strip().startswith(("-", "#"))
    }
    assert {flag for flag in flags | keys if flag not in found and f"export {flag}" not in found} == set()
    assert len(flags | keys) > 10


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_there_and_back(name):
    """A job that becomes another one on its way through Megatron-LM's flags was said wrongly there or here."""
    first = migrated(name)
    flags = exporter_for("megatron")(exportable(loaded(first))).text
    source = Source(text=flags, name=name, networks=NETWORKS)
    second = importer_for("megatron")(source)
    assert second.formulas == first.formulas.replace(" BALANCE BY time", "")  # where layers lie, they count
    assert (second.job["model"], second.job["train"]) == (first.job["model"], first.job["train"])
    assert second.job["orchestration"]["devices"] == first.job["orchestration"]["devices"]
    assert not [setting for setting in second.settings if "no such flag" in setting.reason]


@pytest.mark.parametrize("name", REFUSED)
def test_other_networks_are_refused(name):
    """A decoder made of half an encoder and decoder trains something, and not what was asked for."""
    with pytest.raises(MigrationError, match=r"encoder|NeoX"):
        migrated(name)


@pytest.mark.parametrize("name", [*CONFIGURATIONS, *REFUSED])
def test_each_configuration_names_its_source(name):
    """A number that nobody can look up proves nothing."""
    first = (FACTS / name).read_text(encoding="utf-8").partition("\n")[0]
    assert re.match(r"# The settings of [\w.-]+/[\w.-]+ [\w./-]+", first)


def test_the_configurations_differ():
    """Goldens of one kind of training prove one kind of training."""
    formulas = "".join(migrated(name).formulas for name in CONFIGURATIONS)
    wanted = (
        "1f1b",
        "interleaved_1f1b",
        "PLACE layers",
        "STORE params, grads, states",
        "STORE states",
        "OVER cp",
        "SPLIT experts",
        "SPLIT sequence OF activations",
        "RECOMPUTE",
        "COMPUTE",
        "KEEP",
        "fp8",
    )
    assert not [word for word in wanted if word not in formulas]
    assert len(CONFIGURATIONS) >= 15
    assert {fate for name in CONFIGURATIONS for fate in {s.fate for s in migrated(name).settings}} == set(
        Fate
    )
