"""A rank that starts while its agent is being killed: whatever the agent had still said, nothing begins."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKERS = ("trimtab.runtime.worker", "trimtab.runtime.script_worker")


def start(module: str, ticket: dict[str, object], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(ticket) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        check=False,
    )


@pytest.mark.parametrize("module", WORKERS)
def test_an_orphan_does_nothing(module: str, tmp_path: Path) -> None:
    """Its agent ended before the kernel was asked to tell: the ticket says whose child it was."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ticket = {
        "agent_pid": ended.pid,
        "folder": str(tmp_path / "run"),
        "settings": {"working_folder": str(tmp_path)},
    }
    ran = start(module, ticket, tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", WORKERS)
def test_a_child_of_a_living_agent_goes_on(module: str, tmp_path: Path) -> None:
    """The same ticket from a parent that lives is taken: it lacks the rank's number, and that is what is complained of."""
    ticket = {
        "agent_pid": os.getpid(),
        "folder": str(tmp_path),
        "settings": {"working_folder": str(tmp_path)},
    }
    ran = start(module, ticket, tmp_path)
    assert ran.returncode != 0
    assert "KeyError: 'rank'" in ran.stderr
