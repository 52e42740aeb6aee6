"""Workers that die, stand still and come back, on one study."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.app.tuning.table_worker import worker_on
from trimtab.app.tuning.owners import is_gone, own_name
from trimtab.app.tuning.studies import Study, TrialRow, create_study
from trimtab.policy.trials import Trial, TrialState

WORKER = Path(__file__).with_name("table_worker.py")


def begun(folder: Path) -> Study:
    return create_study(folder, "tuning", {"job": "none"})


class Crew:
    """Forked workers, by process number."""

    def __init__(self, parent: "subprocess.Popen[str]") -> None:
        assert parent.stdout is not None
        self._parent = parent
        self.pids: list[int] = json.loads(parent.stdout.readline())

    def are_at_work(self) -> bool:
        return self._parent.poll() is None

    def ends(self) -> list[int]:
        """How each ended, when all have."""
        assert self._parent.stdout is not None
        codes: list[int] = json.loads(self._parent.stdout.readline())
        return codes


@contextmanager
def workers(study: Study, count: int, **settings: float) -> Iterator[Crew]:
    """Processes at work; those that are left are killed, by their numbers."""
    root = Path(__file__).resolve().parents[3]
    parent = subprocess.Popen(
        [sys.executable, str(WORKER), str(study.folder), json.dumps(settings), str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    crew = Crew(parent)
    try:
        yield crew
    finally:
        if parent.poll() is None:
            for pid in crew.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        parent.communicate()


def running(study: Study) -> list[TrialRow]:
    return [row for row in study.rows() if row.trial.state is TrialState.RUNNING]


def wait_for(what: str, found: object, *, limit_s: float = 120.0) -> None:
    """Until a function says yes."""
    ends_s = time.monotonic() + limit_s
    while not found():  # type: ignore[operator]  # a function without arguments
        assert time.monotonic() < ends_s, what
        time.sleep(0.02)


@pytest.mark.process
def test_five_of_twenty_workers_are_killed_and_the_budget_is_kept_to_the_trial(tmp_path: Path) -> None:
    """Dead trials would stay running, block their devices and their part of the space, and be counted or lost."""
    study = begun(tmp_path)
    with workers(study, 20, trials=40, delay_s=0.4) as crew:
        wait_for("trials run", lambda: len(running(study)) >= 12)
        for victim in random.Random(7).sample(crew.pids, 5):
            os.kill(victim, signal.SIGKILL)
        assert sorted(crew.ends()) == [-signal.SIGKILL] * 5 + [0] * 15
    rows = study.rows()
    assert [row.trial.state for row in rows] == [TrialState.DONE] * 40
    assert sorted(row.params["x"] for row in rows) == list(range(1, 41)), "each once"
    again = [row.trial.number for row in rows if row.trial.attempts > 1]
    assert again, "of the killed ones, some had a trial"


@pytest.mark.process
def test_a_worker_that_stood_still_is_late_and_its_result_counts_once(tmp_path: Path) -> None:
    """A trial that was really made would be thrown away because its worker was slow for a moment."""
    study = begun(tmp_path)
    with workers(study, 1, trials=1, delay_s=1.0, lease_s=0.6) as crew:
        wait_for("the trial runs", lambda: len(running(study)) == 1)
        os.kill(crew.pids[0], signal.SIGSTOP)
        time.sleep(1.2)  # longer than the lease
        # Another worker sees the lease over, lets the trial go, and is told to wait by an empty pool.
        other = worker_on(study.folder, trials=1, pool=0, lease_s=0.6)
        assert other.work() == "a trial takes 1 devices, and there are 0"
        assert [row.trial.state for row in study.rows()] == [TrialState.WAITING]
        os.kill(crew.pids[0], signal.SIGCONT)
        assert crew.ends() == [0]
    (row,) = study.rows()
    assert (row.trial.state, row.trial.attempts) == (TrialState.DONE, 1)
    assert worker_on(study.folder, trials=1).work() == "the budget of 1 trials"
    with study.transaction() as now:
        assert not now.end(0, row.outcome), "a second word of it changes nothing"


@pytest.mark.process
def test_a_step_longer_than_the_lease_keeps_it(tmp_path: Path) -> None:
    """A long step would look like a dead worker."""
    study = begun(tmp_path)
    with workers(study, 2, trials=2, delay_s=2.0, lease_s=0.5) as crew:
        assert crew.ends() == [0, 0]
    rows = study.rows()
    assert [(row.trial.state, row.trial.attempts) for row in rows] == [(TrialState.DONE, 1)] * 2


@pytest.mark.process
def test_devices_for_a_trial_and_a_half_are_never_held_in_halves(tmp_path: Path) -> None:
    """Two workers that each held one device and waited for the second would wait for ever."""
    study = begun(tmp_path)
    with workers(study, 2, trials=6, delay_s=0.1, devices=2, pool=3) as crew:
        most = 0
        while crew.are_at_work():
            most = max(most, sum(row.trial.devices for row in running(study)))
            time.sleep(0.01)
        assert crew.ends() == [0, 0]
    assert most == 2
    assert [row.trial.state for row in study.rows()] == [TrialState.DONE] * 6


def test_an_owner_is_told_from_a_later_process_with_its_number() -> None:
    """Numbers are used again: a dead worker would seem to live."""
    host, pid, started = own_name().rsplit("/", 2)
    assert not is_gone(own_name())
    assert is_gone(f"{host}/{pid}/{int(started) - 1}")
    assert is_gone(f"{host}/{2**22 + 1}/{started}")
    assert not is_gone(f"elsewhere/{2**22 + 1}/{started}"), "of another machine nothing is known"


def test_a_study_survives_whoever_opens_it(tmp_path: Path) -> None:
    study = begun(tmp_path)
    with study.transaction() as now:
        now.add(Trial(number=0, state=TrialState.WAITING, devices=1), {"x": 3})
        now.note("pair 0 own", 2.5)
        now.note("pair 0 own", 3.5)
        now.say(1.0, 0, "taken up")
    again = Study(study.folder)
    assert [row.params for row in again.rows()] == [{"x": 3}]
    assert again.asked() == {"job": "none", "pair 0 own": 3.5}
    with suppress(ZeroDivisionError), again.transaction() as now:
        now.note("job", "other")
        raise ZeroDivisionError
    assert again.asked()["job"] == "none", "a transaction that does not end changes nothing"
