"""The coordinator is killed while the ranks train: another one goes on from its journal, and no bit changes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Ran
from tests.engines.conformance import assert_nothing_is_left
from tests.engines.driving import SLOW, Going, coordinators_of, processes_of, started, wait_for

pytestmark = pytest.mark.process

REFEREES = Path(__file__).parents[2] / "referee"


def kill_coordinator(run: Going) -> int:
    """Kill the one that decides now; returns which it was."""
    pid = wait_for(lambda: coordinators_of(run.name))[0]
    os.kill(pid, signal.SIGKILL)
    return pid


def restarts(run: Going) -> list[int]:
    """The epoch in which each coordinator but the first began."""
    return [event["epoch"] for event in run.events("coordinator")]


def is_at_work(run: Going) -> bool:
    """Whether the newest coordinator has read its journal and goes on."""
    back = run.events("coordinator")
    return bool(back) and back[-1]["pid"] in coordinators_of(run.name)


def assert_one_history(run: Going) -> None:
    """Epochs are numbered on, whoever numbers them, and no process was started twice."""
    epochs = [event["epoch"] for event in run.events("formed")]
    assert epochs == sorted(set(epochs))
    assert restarts(run) == sorted(restarts(run))
    spawned = [(event["rank"], event["incarnation"]) for event in run.events("spawned")]
    assert len(spawned) == len(set(spawned))


def test_a_coordinator_killed_at_any_time_costs_no_step(workplace: Path, alone: Ran) -> None:
    """Killed at the start, in the middle, and together with a rank, whose death nobody is there to see."""
    with started(workplace, "local", *SLOW) as run:
        kill_coordinator(run)
        run.wait_for_step(4)
        kill_coordinator(run)
        run.wait_for_step(6)
        ranks = run.pids(2)
        wait_for(lambda: restarts(run))
        kill_coordinator(run)
        os.kill(ranks[1], signal.SIGKILL)
        document = run.end()
        assert_nothing_is_left(run, set())
    assert document["state"] == "done"
    assert document["weights_sha256"] == alone.document["weights_sha256"]
    assert [(each["rank"], each["steps_lost"]) for each in document["recoveries"]] == [(1, 0)]
    assert len(restarts(run)) in (2, 3), "one may have been killed before it had anything to go on from"
    assert_one_history(run)
    ledger = document["ledger"]
    assert sum(ledger["classes"].values()) == ledger["allocated_ns"]


@pytest.mark.slow
def test_a_coordinator_that_hangs_is_replaced(workplace: Path, alone: Ran) -> None:
    """Stopped, it holds its sockets open: only that it answers nothing tells, and a run must not wait for ever."""
    with started(workplace, "local", *SLOW, "--inject", "kill:rank=1,step=7") as run:
        run.wait_for_step(4)
        os.kill(wait_for(lambda: coordinators_of(run.name))[0], signal.SIGSTOP)
        document = run.end()
        assert_nothing_is_left(run, set())
    assert document["weights_sha256"] == alone.document["weights_sha256"]
    assert len(restarts(run)) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_coordinators_killed_at_random_times(workplace: Path, alone: Ran) -> None:
    """S-FT-18: each of twenty at a random moment of a run that loses a rank, too; one history, the same bits."""
    seed = 20261130
    moments = random.Random(seed)
    changes = ("--inject", "kill:rank=1,step=6,phase=reduce", "--set", "fault_tolerance.replace=true")
    with started(workplace, "local", "--inject", "slow:rank=0,step=1,factor=100", *changes) as run:
        wait_for(lambda: run.events("decided"))
        for number in range(20):
            run.wait_for_step(number // 2 - 1)  # over the whole run, the loss of the rank in its middle
            if number % 2 and number > 1:  # in the middle of its work, else while it reads its journal
                wait_for(lambda: is_at_work(run))
            time.sleep(moments.uniform(0.0, 0.8))  # the point is a time that nothing in the run announces
            if run.process.poll() is not None:
                pytest.fail(f"seed {seed}: the run was over before the kill number {number}")
            kill_coordinator(run)
        document = run.end(300)
        assert_nothing_is_left(run, set())
    assert document["weights_sha256"] == alone.document["weights_sha256"], f"seed {seed}"
    assert document["state"] == "done"
    assert len(restarts(run)) >= 10
    assert not processes_of(run.name)
    assert_one_history(run)
    for referee, runs in (("histories.py", [run.folder]), ("same_bits.py", [run.folder, alone.folder])):
        said = subprocess.run(
            [sys.executable, str(REFEREES / referee), *map(str, runs)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.returncode == 0, said.stdout + said.stderr
