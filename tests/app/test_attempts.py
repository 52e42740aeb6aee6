import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.app.attempts import exit_code_of
from trimtab.engines import Outcome
from trimtab.terms import ExitCode, RunState


def outcome(state, signal_number=None):
    return Outcome(state=state, error=None, results={}, signal_number=signal_number)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (outcome(RunState.DONE), ExitCode.DONE),
        (outcome(RunState.FAILED), ExitCode.RUN_FAILED),
        (outcome(RunState.FAILED, signal.SIGTERM), ExitCode.RUN_FAILED),
        (outcome(RunState.STOPPED, signal.SIGINT), ExitCode.INTERRUPTED),
        (outcome(RunState.STOPPED, signal.SIGTERM), ExitCode.TERMINATED),
        (outcome(RunState.STOPPED, signal.SIGUSR1), ExitCode.TERMINATED),
    ],
)
def test_exit_codes_tell_how_a_run_ended(ended, code):
    """130 and 143 promise that the state was saved: a run that failed while it was stopped says 1."""
    assert exit_code_of(ended) == code


@pytest.mark.process
def test_a_run_ends_with_its_document_and_can_be_read_afterwards(trimtab):
    """`run --json` prints one document and nothing else; `report` says the same later."""
    ran = trimtab("run", "tiny.yaml", "--json")
    document = ran.document
    assert document["state"] == "done"
    assert document["steps"] == 12
    assert len(document["weights_sha256"]) == 64
    assert document["unigram_entropy"] > 0
    assert json.loads((ran.folder / "report.json").read_text()) == document
    later = trimtab("report", document["run"], "--json").document
    assert later["ledger"] == document["ledger"]
    assert "step 1 " in ran.stderr


@pytest.mark.process
def test_ctrl_c_leaves_no_process_and_harms_no_other(workplace: Path):
    """Exit code 130, every rank gone, a sibling alive."""
    command = [sys.executable, "-m", "trimtab", "run", "tiny.yaml", "--set", "train.steps=100000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], cwd=workplace) as sibling,
        subprocess.Popen(command, cwd=workplace, **pipes) as run,
    ):
        try:
            name = run.stderr.readline().split()[1].rstrip(",")
            while not run.stdout.readline().startswith("step "):
                assert run.poll() is None
            assert len(_processes_of(name)) >= 4
            run.send_signal(signal.SIGINT)
            out, _ = run.communicate(timeout=60)
            assert run.returncode == 130, out
            assert f"{name}: stopped" in out
            assert not _processes_of(name)
            assert sibling.poll() is None
        finally:
            run.kill()
            sibling.kill()


def _processes_of(run):
    """Ranks of a run, by the name that each has in its environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:  # gone, or somebody else's
                continue
            if f"TRIMTAB_RUN={run}".encode() in environment.split(b"\0"):
                found.append(int(folder.name))
    return found
