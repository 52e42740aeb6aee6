import json
import platform
from dataclasses import replace
from importlib.metadata import version

import pytest

from tests.catalog.test_probes import PROBE
from trimtab.app import doctor
from trimtab.app.machines import find_machine


def test_this_machine_is_fit(cli):
    """The tests run here, so training does too."""
    document = cli("doctor", "--json").document
    subjects = [finding["subject"] for finding in document["findings"]]
    assert {"python", "torch", "cores", "memory", "disk", "ports"} <= set(subjects)
    assert document["is_fit"], document
    assert cli("doctor").code == 0


def test_what_is_unfit_comes_with_advice(cli, monkeypatch):
    """A finding without a next step helps nobody."""
    monkeypatch.setattr(doctor, "version", lambda name: "0.1")
    answer = cli("doctor")
    assert answer.code == 1
    assert "BAD torch" in answer.out
    assert "pip install 'torch==2.13.0'" in answer.out


@pytest.mark.parametrize(
    ("relation", "wanted", "is_fit"),
    [("==", "0.0.1", False), (">=", "0.0.1", True), (">=", "9999", False), ("", "", True)],
)
def test_versions_are_compared_by_number(relation, wanted, is_fit):
    """2.13.0+cpu is 2.13, and 0.9 is older than 0.10."""
    assert doctor._package("pytest", relation, wanted).is_fit is is_fit
    assert doctor._release("2.13.0+cpu") == doctor._release("2.13")
    assert doctor._release("0.10") > doctor._release("0.9")


def test_a_package_that_is_missing_is_named():
    """With the command that installs it."""
    finding = doctor._package("no-such-package-anywhere", ">=", "1")
    assert not finding.is_fit
    assert finding.advice == "pip install 'no-such-package-anywhere>=1'"


def test_a_probe_of_another_torch_is_told_with_what_to_do(cli, desk, monkeypatch):
    """The planner would go on by rates of kernels that are gone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(desk / "cache"))
    assert "none: parallelism: auto needs one" in cli("doctor").out
    place = desk / "cache" / "trimtab" / "probe.json"
    place.parent.mkdir(parents=True)
    here = {"Python": platform.python_version(), "torch": version("torch")}
    for versions, said in ((here, False), (here | {"torch": "2.9.1"}, True)):
        place.write_text(json.dumps(replace(PROBE, versions=versions).document()))
        answer = cli("doctor")
        assert ("torch 2.9.1, now 2.13.0" in answer.out) is said
        assert ("trimtab probe takes a new one" in answer.out) is said
        assert answer.code == 0, "who trains can do without one"
    place.write_text("{}")
    assert "not a probe of a machine" in cli("doctor").out


def test_the_machine_is_told_by_the_system():
    """Cores that this process may use, memory that it can have."""
    machine = find_machine()
    assert machine.cores >= 1
    assert machine.memory_bytes > 10**8
