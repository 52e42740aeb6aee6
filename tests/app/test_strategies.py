"""The verbs about presets."""

import pytest

from trimtab.spec import parse_strategy
from trimtab.spec.language import DEFAULTS, preset, preset_names


def test_every_preset_is_listed_with_its_sentence(cli):
    """A preset that is not listed is not found."""
    lines = cli("strategy", "ls").out.splitlines()
    assert [line.split()[0] for line in lines] == [*preset_names(), "defaults"]
    for line, name in zip(lines, preset_names(), strict=False):
        assert line.endswith(preset(name).summary)


@pytest.mark.parametrize("name", preset_names())
def test_what_is_shown_can_be_copied_into_a_job_file(cli, name):
    """A preset is formulas with a name: who wants one line otherwise copies and changes it."""
    shown = cli("strategy", "show", name).out
    use = shown.splitlines()[0].removeprefix("-- ")
    assert parse_strategy(shown, source="copied") == parse_strategy(use, source="used")
    assert parse_strategy(use, source="used") == parse_strategy(f"USE '{name}'", source="short")
    assert preset(name).summary in shown


def test_the_defaults_are_shown(cli):
    """Defaults are a printed prelude, not hidden."""
    assert cli("strategy", "show", "defaults").out == DEFAULTS


def test_programs_get_one_document(cli):
    """Scripts read it."""
    listed = cli("strategy", "ls", "--json").document["presets"]
    assert [found["name"] for found in listed] == list(preset_names())
    shown = cli("strategy", "show", "megatron-3d", "--json").document
    assert shown["parameters"] == {"pp": 2, "tp": 8, "num_microbatches": 8}
    assert shown in listed
    assert shown["formulas"].startswith("MESH pp 2, dp *, tp 8 WITHIN node\n")
    assert cli("strategy", "show", "defaults", "--json").document == {
        "name": "defaults",
        "formulas": DEFAULTS,
    }


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_unknown_preset_is_refused_with_the_nearest(cli, form):
    """Exit code 2 and a name, not a traceback."""
    answer = cli("strategy", "show", "zreo3", *form)
    assert answer.code == 2
    assert "Did you mean 'zero3'?" in answer.err


def test_there_is_no_other_memory_than_the_host_s(cli, desk):
    """A rank on a CPU that offloads would copy its states to where they are."""
    answer = cli("run", "job.yaml", "--set", "parallelism=MESH dp 2; OFFLOAD states TO host")
    assert answer.code == 2
    assert "a rank's device is the host's memory: there is nowhere else to put it" in answer.err
    assert not (desk / "runs").exists()


def test_formulas_that_the_runtime_has_not_are_refused_before_anything_starts(cli, desk):
    """A run without one of its statements would train something else, and look right."""
    answer = cli("run", "job.yaml", "--set", "parallelism=MESH dp 2; SEAL grads OVER dp")
    assert answer.code == 2
    assert "SEAL is not in this release" in answer.err
    assert not (desk / "runs").exists()
