"""The engine that job files call ``torchrun``: it starts torchrun, watches what its ranks write, and ends it.

Torchrun starts the ranks, and starts all of them again when one is lost; they go on from the newest checkpoint.
An error that a rank itself raised would come again, so the first one ends the attempt.
"""

import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trimtab.engines.agent_journal import AgentJournal
from trimtab.engines.engine import Observer, Outcome
from trimtab.engines.errors import LaunchError
from trimtab.engines.launch import Launch
from trimtab.engines.stop_signals import StopSignals, is_warned_again
from trimtab.engines.torchrun.rank_records import (
    RankEvent,
    RankJournals,
    broken_collective,
    clock_times,
    first_cause,
    read_results,
)
from trimtab.engines.torchrun.request import TorchrunRequest, torchrun_request
from trimtab.ledger import EventKind
from trimtab.terms import RunState

_TICK_S = 0.1
_AFTER_GRACE_S = 2.0
"""How long torchrun may take beyond the grace, at whose end it kills the ranks itself."""
_WATCHED = (EventKind.EVALUATION, EventKind.CHECKPOINT)
"""Events of the ranks that the observer is told of, as under an agent."""


class TorchrunEngine:
    """Ranks on this machine under torchrun. See Engine."""

    name = "torchrun"
    survives_in_step = False

    def request(self, launch: Launch) -> TorchrunRequest:
        """The one command line, and the settings that its ranks read."""
        return torchrun_request(launch)

    def run(self, launch: Launch, observe: Observer) -> Outcome:
        """See Engine."""
        return _Supervisor(launch, observe).run()


@dataclass(slots=True, kw_only=True)
class _Process:
    """A rank's process, which torchrun started. ``pidfd`` becomes readable when it ends; None if it had ended."""

    rank: int
    incarnation: int
    pid: int
    pidfd: int | None
    step: int = 0
    """The step that it works on."""
    code: int | None = None
    """What it said that it would exit with; None if it never came to that."""
    is_ended: bool = False
    is_recorded: bool = False


class _Supervisor:
    """One attempt. One thread, one loop over signals, process ends and the ranks' journals."""

    def __init__(self, launch: Launch, observe: Observer) -> None:
        self._launch, self._observe = launch, observe
        self._request = torchrun_request(launch)
        self._journal = AgentJournal(launch, observe)
        self._record = self._journal.record
        self._journals = RankJournals(launch.folder, first_incarnation=launch.first_incarnation)
        self._selector = selectors.DefaultSelector()
        self._torchrun: subprocess.Popen[bytes] | None = None
        self._started_ns = 0
        self._processes: dict[tuple[int, int], _Process] = {}
        self._incarnation = launch.first_incarnation
        self._faulty: set[int] = set()
        self._has_committed = False
        self._signal: int | None = None
        self._deadline_s: float | None = None
        self._force: str | None = None

    def run(self) -> Outcome:
        """Start torchrun and stay until the last process is gone."""
        began_ns = self._journal.begin()
        signals = StopSignals(self._selector, self._on_signal)
        try:
            torchrun = self._start()
            self._journal.hold(began_ns)
            while torchrun.poll() is None and self._force is None:
                self._turn()
        finally:
            self._end_everything()
            outcome = self._outcome()
            self._journal.end(outcome)
            signals.close()
            self._selector.close()
            self._journal.close()
        return outcome

    def _start(self) -> "subprocess.Popen[bytes]":
        logs = self._launch.folder / "logs"
        self._started_ns = time.monotonic_ns()
        try:
            logs.mkdir(exist_ok=True)
            self._request.write_settings()
            with open(self._log, "ab") as output:
                self._torchrun = torchrun = subprocess.Popen(
                    self._request.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(self._request.environment),
                    start_new_session=True,  # a terminal's Ctrl-C is forwarded by us, once
                )
        except OSError as error:
            raise LaunchError(f"could not start {shlex.join(self._request.command())}: {error}") from error
        if self._signal is not None:
            torchrun.terminate()
        return torchrun

    @property
    def _log(self) -> Path:
        """What torchrun itself says, and a rank before it has opened its own log."""
        return self._launch.folder / "logs" / f"torchrun-{self._launch.attempt}.log"

    # The loop.

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TICK_S):
            key.data()
        self._look()
        cause = first_cause(self._launch.folder, self._incarnation)
        if cause is not None:
            self._record("failed", rank=cause.rank, step=cause.step, phase=cause.phase, error=cause.error)
            self._force = str(cause)
        elif self._deadline_s is not None and time.monotonic() > self._deadline_s:
            self._force = self._too_late()

    def _on_signal(self, number: int) -> None:
        if self._signal is not None:
            if not is_warned_again(self._signal, number):
                self._force = "stopped by force: a second signal arrived"
            return
        self._signal = number
        self._deadline_s = time.monotonic() + self._launch.grace_s + _AFTER_GRACE_S
        self._record("signal", signal=number)
        if self._torchrun is not None:
            self._torchrun.terminate()

    def _look(self) -> None:
        """Take in what the ranks have written, then judge those that ended: their last words came before."""
        for found in self._journals.news():
            self._take(found)
        ended = [p for p in self._processes.values() if p.is_ended and not p.is_recorded]
        for process in sorted(ended, key=lambda p: (p.incarnation, p.code is not None, p.rank)):
            self._record_exit(process)

    def _take(self, found: RankEvent) -> None:
        event, process = found.event, self._processes.get((found.rank, found.incarnation))
        if event.kind == "started":
            self._on_started(found)
        elif process is None:
            return
        elif event.kind == "entered":
            process.step = event.integer("step")
            self._on_entered(found, process.step)
        elif event.kind == EventKind.STEP:
            process.step = event.integer("step") + 1
        elif event.kind == EventKind.COMMIT:
            self._has_committed = True
            self._observe("step", event.t_ns, {**event.fields, "rank": found.rank})
        elif event.kind == "ended":
            process.code = event.integer("code")
        elif event.kind in _WATCHED:
            self._observe(event.kind, event.t_ns, dict(event.fields))

    def _on_started(self, found: RankEvent) -> None:
        """A new process of a rank; the one before is gone, for torchrun waits for all before it starts again."""
        for process in list(self._processes.values()):
            if process.rank == found.rank and not process.is_recorded:
                self._record_exit(process)
        self._incarnation = max(self._incarnation, found.incarnation)
        process = _Process(
            rank=found.rank,
            incarnation=found.incarnation,
            pid=found.event.integer("pid"),
            pidfd=_open_process(found.event.integer("pid")),
        )
        process.is_ended = process.pidfd is None
        self._processes[found.rank, found.incarnation] = process
        is_first = found.incarnation == self._launch.first_incarnation
        self._record(
            EventKind.SPAWNED,
            at_ns=self._started_ns if is_first else found.event.t_ns,  # torchrun's own start is a start, too
            device=found.rank,
            rank=found.rank,
            incarnation=found.incarnation,
            pid=process.pid,
        )
        if process.pidfd is not None:
            self._selector.register(process.pidfd, selectors.EVENT_READ, lambda: self._on_end(process))

    def _on_end(self, process: _Process) -> None:
        assert process.pidfd is not None
        process.is_ended = True
        self._selector.unregister(process.pidfd)
        os.close(process.pidfd)
        process.pidfd = None
        _kill_group(process.pid)

    def _on_entered(self, found: RankEvent, step: int) -> None:
        """The ranks of an incarnation have formed; those of a later one go on from a checkpoint."""
        if found.rank:
            return
        fields = found.event.fields
        self._record(
            EventKind.FORMED, at_ns=found.event.t_ns, epoch=fields["epoch"], members=fields["members"]
        )
        if found.incarnation > self._launch.first_incarnation:
            self._record(
                EventKind.ROLLBACK,
                at_ns=found.event.t_ns,
                to_step=step,
                reason="torchrun started all ranks again",
            )

    def _record_exit(self, process: _Process) -> None:
        if process.pidfd is not None:
            self._on_end(process)
        process.is_ended = process.is_recorded = True
        folder, now_ns = self._launch.folder, time.monotonic_ns()
        successor = clock_times(folder, process.rank, process.incarnation + 1)
        self._record(
            EventKind.EXITED,
            at_ns=now_ns if successor is None else min(now_ns, successor[0]),
            rank=process.rank,
            incarnation=process.incarnation,
            device=process.rank,
            code=process.code,
            signal=None,
            log=str(folder / "logs" / f"rank-{process.rank}-{process.incarnation}.log"),
        )
        is_blameless = process.code == 0 or self._signal is not None or self._force is not None
        if not is_blameless and process.incarnation not in self._faulty:
            self._faulty.add(process.incarnation)
            self._record_fault(process, now_ns)

    def _record_fault(self, process: _Process, now_ns: int) -> None:
        """The first rank that an incarnation lost; the others are ended because of it."""
        times = clock_times(self._launch.folder, process.rank, process.incarnation)
        self._record(
            EventKind.FAULT,
            rank=process.rank,
            incarnation=process.incarnation,
            step=process.step,
            cause="exited",
            detail="ended without a word" if process.code is None else f"exit code {process.code}",
            t_fault_ns=now_ns if times is None else min(now_ns, times[1]),
            t_declared_ns=now_ns,
        )

    # The end.

    def _end_everything(self) -> None:
        """Kill what still runs, wait for it, and take in the last words."""
        if self._torchrun is not None and self._torchrun.poll() is None:
            children = list(_children_of(self._torchrun.pid))
            _kill_group(self._torchrun.pid)
            self._torchrun.wait()
            for pid in children:  # each leads its own session; some may not have written a word yet
                _kill_group(pid)
        self._look()
        for process in self._processes.values():
            if process.pidfd is not None:
                _kill_group(process.pid)
        while any(process.pidfd is not None for process in self._processes.values()):
            for key, _ in self._selector.select(_TICK_S):
                key.data()
        self._look()

    def _outcome(self) -> Outcome:
        results = read_results(self._launch.folder, self._launch.attempt)
        if results is not None:
            state, error = RunState(results["state"]), None
        else:
            error = self._error()
            state = RunState.STOPPED if error is None else RunState.FAILED
        return Outcome(state=state, error=error, results=results or {}, signal_number=self._signal)

    def _error(self) -> str | None:
        """Why there are no results; None if the run was asked to stop before there was anything to save."""
        cause = first_cause(self._launch.folder, self._incarnation)
        if self._force is not None or cause is not None:
            return self._force or str(cause)
        if self._signal is not None:
            return self._too_late() if self._has_committed else None
        return f"{self._last_loss()}; torchrun gave up, see {self._log}"

    def _too_late(self) -> str:
        return f"did not end within the grace of {self._launch.grace_s:g} s"

    def _last_loss(self) -> str:
        """What ended the last incarnation: a rank that died without a word, else the collective that broke first."""
        silent = [
            p for p in self._processes.values() if p.incarnation == self._incarnation and p.code is None
        ]
        if silent:
            return f"rank {silent[0].rank} ended without a word in step {silent[0].step + 1}"
        broken = broken_collective(self._launch.folder, self._incarnation)
        if broken is not None:
            return str(broken)
        code = self._torchrun.returncode if self._torchrun is not None else None
        return f"torchrun ended with exit code {code}"


def _open_process(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _kill_group(pid: int) -> None:
    """Kill the session that a process leads or led, and with it its children."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone; or only a zombie, on some kernels
        return


def _children_of(pid: int) -> Iterator[int]:
    """The processes that this one started and that still run; none where the kernel does not list them."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, path.read_text(encoding="ascii").split())
        except OSError:
            continue
