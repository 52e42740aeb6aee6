"""``trimtab.run``: the same runs, results and errors as the command line's."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trimtab as package
from tests.conftest import Ran, Trimtab
from trimtab.spec import JobFileError
from trimtab.terms import InputError, RunState

TWO_STEPS: dict[str, Any] = {
    "run": "called",
    "model": {"preset": "gpt-3m", "layers": 1, "embed": 32, "heads": 2, "mlp": 64},
    "data": {"text": "text", "sequence": 32},
    "train": {"steps": 2, "batch": 4, "optimizer": {"adamw": {"lr": 1e-3}}},
    "orchestration": {"devices": 2},
    "fault_tolerance": {"checkpoint": {"every": "off"}},
}


def called(workplace: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A Python program in the workplace, whose main thread trimtab.run needs."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=workplace, capture_output=True, text=True, timeout=90, check=False)


def test_importing_the_package_loads_no_torch() -> None:
    """`import trimtab` stands at the top of scripts and notebooks that may never train."""
    code = "import sys, trimtab; print(len([name for name in sys.modules if name.startswith('trimtab')]))"
    code += "; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["1", "False"]


def test_every_public_name_is_where_it_is_said_to_be() -> None:
    """A name that is listed and not there breaks the first line of somebody's program."""
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'adpot'"):
        package.adpot  # noqa: B018 - the access is what is tested


@pytest.mark.process
def test_a_mapping_trains_as_the_same_job_file_does(workplace: Path, trimtab: Trimtab) -> None:
    """The result has the fields of `run --json`, and the weights have the same bits."""
    (workplace / "called.yaml").write_text(json.dumps(TWO_STEPS), encoding="utf-8")
    ran: Ran = trimtab("run", "called.yaml", "--json")
    code = "import dataclasses, json, trimtab\n"
    code += f"result = trimtab.run({TWO_STEPS!r})\n"
    code += "print(json.dumps(dataclasses.asdict(result)))"
    ended = called(workplace, code)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert list(result) == list(ran.document)
    assert result["state"] == RunState.DONE
    assert result["weights_sha256"] == ran.document["weights_sha256"]
    assert ended.stderr == "", "it is quiet unless asked"


@pytest.mark.process
def test_a_run_that_fails_raises_its_first_cause(workplace: Path) -> None:
    """A program that goes on with the weights of a failed run would publish them."""
    code = "import trimtab\n"
    code += f"try:\n    trimtab.run({TWO_STEPS!r}, inject=['raise:rank=1,step=1'])\n"
    code += "except trimtab.RunError as error:\n    print(error)"
    ended = called(workplace, code)
    assert "rank 1 failed: PlantedError" in ended.stdout, ended.stderr
    assert "The run is in " in ended.stdout


def test_what_is_wrong_in_a_mapping_is_shown_at_its_line() -> None:
    """A mapping deserves the same answer as a file: all errors, each with its place."""
    wrong = {**TWO_STEPS, "train": {"steps": 2, "bach": 4}}
    with pytest.raises(JobFileError, match="Did you mean 'batch'") as caught:
        package.run(wrong)
    assert str(caught.value).startswith("job:")


def test_a_mapping_that_is_no_job_is_named() -> None:
    """Such as a tensor for a number."""
    with pytest.raises(InputError, match="Object of type set is not JSON"):
        package.run({"run": {1}})


def test_a_job_file_that_is_not_there_is_an_input_error() -> None:
    """The same words as the command line's."""
    with pytest.raises(InputError, match=r"nowhere\.yaml: cannot read the job file"):
        package.run(Path("nowhere.yaml"))
