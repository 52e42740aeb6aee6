import signal
import subprocess
import sys

import pytest

from trimtab.app.reports import folder_report
from trimtab.app.run_folders import at_work
from trimtab.ledger import Label

AGENT = """
import sys, pathlib, signal, time
from trimtab.app.run_folders import at_work
def end(number, frame):
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
with at_work(pathlib.Path(sys.argv[1])):
    print("at work", flush=True)
    time.sleep(60)
"""


def test_a_run_that_is_not_running_is_not_stopped(cli, written_run):
    """Exit code 2, and no signal to anybody."""
    written_run()
    answer = cli("stop", "quick-1")
    assert answer.code == 2
    assert "not running" in answer.err


@pytest.mark.process
def test_stop_ends_the_agent_and_waits_for_it(cli, written_run):
    """When `stop` returns, the devices are free."""
    run = written_run()
    with _agent(run.folder) as agent:
        assert cli("stop", "quick-1", "--json").document["state"] == "stopped"
        assert agent.wait(timeout=1.0) == 143


@pytest.mark.process
def test_a_stale_process_number_is_never_signalled(cli, written_run):
    """After a crash another program may have the number that the agent had: it must live."""
    run = written_run()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as bystander:
        (run.folder / "run.lock").write_text(f"{bystander.pid}\n")
        assert cli("stop", "quick-1").code == 2
        assert bystander.poll() is None
        bystander.kill()


@pytest.mark.process
def test_a_living_run_is_not_rolled_back(cli, written_run):
    """Its next checkpoint would make the rollback undone."""
    run = written_run().attempt(1, range(4)).checkpoint(2).checkpoint(4)
    with _agent(run.folder) as agent:
        answer = cli("rollback", "quick-1", "--to", "2")
        agent.send_signal(signal.SIGTERM)
    assert answer.code == 2
    assert "is running" in answer.err
    assert (run.folder / "checkpoints" / "step-4").is_dir()


def test_rollback_sets_newer_checkpoints_aside(cli, written_run):
    """Nothing is deleted: a rollback that was wrong can be taken back by hand."""
    written_run().attempt(1, range(6)).checkpoint(2).checkpoint(4).checkpoint(6)
    answer = cli("rollback", "quick-1", "--to", "2", "--json")
    assert answer.code == 0
    assert answer.document["set_aside"] == ["step-4.set-aside-1", "step-6.set-aside-1"]
    listed = cli("checkpoints", "ls", "quick-1", "--json").document["checkpoints"]
    assert [row["step"] for row in listed] == [2]


def test_the_ledger_calls_what_was_rolled_back_lost(cli, written_run):
    """Four of six steps are thrown away; their time is shown as such and no second is created."""
    run = written_run().attempt(1, range(6)).checkpoint(2).checkpoint(6)
    before = folder_report(run.folder).report.account
    assert cli("rollback", "quick-1", "--to", "2").code == 0
    after = folder_report(run.folder).report.account
    assert before.entries()[Label.LOST_WORK] == 0
    assert after.entries()[Label.LOST_WORK] == 2 * 4 * 10**9
    assert after.allocated_ns == before.allocated_ns


def test_a_step_without_a_whole_checkpoint_is_refused_with_those_there_are(cli, written_run):
    """And nothing has been moved."""
    run = written_run().attempt(1, range(6)).checkpoint(2).checkpoint(4).checkpoint(6)
    (run.folder / "checkpoints" / "step-4" / "model.safetensors").unlink()
    answer = cli("rollback", "quick-1", "--to", "4")
    assert answer.code == 2
    assert "whole ones: 2, 6" in answer.err
    assert (run.folder / "checkpoints" / "step-6").is_dir()


def test_a_torn_newer_checkpoint_is_set_aside_too(cli, written_run):
    """Or it would be mended later and take the run back to the future."""
    run = written_run().attempt(1, range(6)).checkpoint(2).checkpoint(4)
    (run.folder / "checkpoints" / "step-4" / "model.safetensors").unlink()
    assert cli("rollback", "quick-1", "--to", "2").code == 0
    assert not (run.folder / "checkpoints" / "step-4").exists()


def test_a_lock_held_here_counts_as_alive(cli, written_run):
    """Whoever holds it, in whichever process."""
    run = written_run().attempt(1, range(2)).checkpoint(2)
    with at_work(run.folder):
        assert cli("rollback", "quick-1", "--to", "2").code == 2


def _agent(folder):
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(folder)], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    assert agent.stdout.readline() == "at work\n"
    return agent


def test_a_damaged_checkpoint_is_not_rolled_back_to(cli, written_run):
    """The newer ones would be set aside, and the resume would find that there is nothing to go on from."""
    run = written_run().attempt(1, range(6)).checkpoint(2).checkpoint(4)
    path = run.folder / "checkpoints" / "step-2" / "model.safetensors"
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    answer = cli("rollback", "quick-1", "--to", "2")
    assert answer.code == 2
    assert "step-2/model.safetensors: damaged" in answer.err
    assert (run.folder / "checkpoints" / "step-4").exists()
