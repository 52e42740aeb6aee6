"""One run of a workload in which things go wrong, for real: commands, signals, and what came of them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.app.leftovers import Held, is_of_run, processes_of
from trimtab.app.run_folders import JOURNAL_FOLDER
from trimtab.sim.chaos import Observed, Strike, Trial
from trimtab.spec.injections import FaultKind
from trimtab.spec.scenarios import AgentFault
from trimtab.terms import ExitCode, RunState

_LOOK_S = 0.01
"""Between two looks at the journals."""
_HOLD_S = 0.5
"""Between two looks at what the processes hold."""
_GRACE_S = 5.0
"""What is left after this time is left over."""

_SIGNALS = {
    FaultKind.KILL: signal.SIGKILL,
    FaultKind.STOP: signal.SIGSTOP,
    AgentFault.KILL_AGENT: signal.SIGKILL,
    AgentFault.STOP_RUN: signal.SIGTERM,
}

_CODES = {AgentFault.KILL_AGENT: -signal.SIGKILL, AgentFault.STOP_RUN: int(ExitCode.TERMINATED)}
"""How a run ends that is resumed then; ended otherwise, that is what came of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What every trial of a scenario runs.

    Args:
        job_file: The resolved job.
        runs: The folder that runs are made in, for this invocation alone.
        devices: Ranks.
    """

    job_file: Path
    runs: Path
    devices: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRun:
    """A trial that was made.

    Args:
        observed: What came of it.
        folder: Of the run; None if it never began.
        seconds: Of the whole, commands included.
        num_lost: Ranks that were lost.
        attempts: Commands that it took.
        command: The first of them, for whoever wants to repeat it by hand.
    """

    observed: Observed
    folder: Path | None
    seconds: float
    num_lost: int
    attempts: int
    command: tuple[str, ...]


def make_trial(workload: Workload, trial: Trial, *, name: str, limit_s: float) -> TrialRun:
    """Run a workload once, make its faults happen, resume it where the agent was hit, and look at what is left.

    Args:
        workload: What is run.
        trial: Its faults; none of them for an undisturbed run.
        name: Of the run, on this machine only once.
        limit_s: After so many seconds the run counts as hung, and is killed.
    """
    return _Maker(workload=workload, trial=trial, name=name, limit_s=limit_s).make()


@dataclass(slots=True, kw_only=True)
class _Maker:
    """Makes one trial. The folder of the run is known beforehand: it is the first of its name."""

    workload: Workload
    trial: Trial
    name: str
    limit_s: float
    waiting: list[Strike] = field(default_factory=list)
    num_struck: int = 0
    attempts: int = 0
    resumed_devices: int | None = None
    agent_hit: AgentFault | None = None

    @property
    def folder(self) -> Path:
        return self.workload.runs / f"{self.name}-1"

    def make(self) -> TrialRun:
        started_s = time.monotonic()
        self.waiting = list(self.trial.strikes)
        held = Held(run=self.folder.name)
        first = command = self._first_command()
        while True:
            self.attempts += 1
            code = self._run(command, held, started_s + self.limit_s)
            if self.agent_hit is None or code != _CODES[self.agent_hit]:
                break
            command, self.agent_hit = self._resuming_command(), None
        document = self._document()
        return TrialRun(
            observed=self._observed(code, document, _left_after_grace(held)),
            folder=self.folder if self.folder.is_dir() else None,
            seconds=time.monotonic() - started_s,
            num_lost=len(document.get("recoveries") or ()),
            attempts=self.attempts,
            command=first,
        )

    def _first_command(self) -> tuple[str, ...]:
        return (
            "run", str(self.workload.job_file), "--json", "--set", f"run={self.name}", "--set",
            f"orchestration.runs={self.workload.runs}", *self._injections(self.workload.devices),
        )  # fmt: skip

    def _resuming_command(self) -> tuple[str, ...]:
        devices = self.resumed_devices
        size = () if devices is None else ("--set", f"orchestration.devices={devices}")
        most = min(devices or self.workload.devices, self.workload.devices)
        return ("resume", str(self.folder), "--json", *size, *self._injections(most))

    def _injections(self, devices: int) -> Iterator[str]:
        """Those that struck already do not strike again: the run's folder remembers."""
        for fault in self.trial.injections:
            if fault.rank < devices:
                yield from ("--inject", fault.text)

    def _run(self, command: Sequence[str], held: Held, deadline_s: float) -> int | None:
        """One command to its end; its exit code, None if it was killed for hanging."""
        with (
            self._output("json").open("w") as out,
            self._output("log").open("a") as log,
            subprocess.Popen(
                [sys.executable, "-m", "trimtab", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            ) as process,
        ):
            try:
                return self._watch(process, held, deadline_s)
            finally:
                process.kill()  # the ranks end when their agent does

    def _watch(self, process: "subprocess.Popen[bytes]", held: Held, deadline_s: float) -> int | None:
        journals, looked_s = _Journals(self.folder / JOURNAL_FOLDER), 0.0
        while process.poll() is None:
            now_s = time.monotonic()
            if now_s > deadline_s:
                return None
            if now_s - looked_s > _HOLD_S:
                held.look(process.pid)
                looked_s = now_s
            if self.waiting:
                journals.read()
                self._strike_what_is_due(journals, process.pid)
            time.sleep(_LOOK_S)
        return process.returncode

    def _strike_what_is_due(self, journals: "_Journals", agent: int) -> None:
        for strike in list(self.waiting):
            if self.agent_hit or not journals.is_due(strike):
                continue
            self.waiting.remove(strike)
            pid = agent if strike.rank is None else journals.pids.get(strike.rank)
            if pid is None or (strike.rank is not None and not is_of_run(pid, self.folder.name)):
                continue  # it is dead already
            os.kill(pid, _SIGNALS[strike.kind])
            self.num_struck += 1
            if isinstance(strike.kind, AgentFault):
                self.agent_hit, self.resumed_devices = strike.kind, strike.devices

    def _observed(self, code: int | None, document: dict[str, Any], left: tuple[str, ...]) -> Observed:
        if code is None:
            error = f"it was still at work after {self.limit_s:.0f} s, and was killed"
            state = RunState.RUNNING
        else:
            error = str(document.get("error") or "")
            state = RunState(document.get("state", RunState.FAILED))
        return Observed(
            state=state,
            error=error or ("" if state is RunState.DONE else self._last_words()),
            weights_sha256=document.get("weights_sha256"),
            steps_lost=tuple(recovery["steps_lost"] for recovery in document.get("recoveries") or ()),
            num_struck=self.num_struck + self._num_planted(),
            ledger=document.get("ledger") or {},
            leftovers=left,
        )

    def _num_planted(self) -> int:
        """Planted faults that struck leave a mark in the run's folder; a slow rank needs none."""
        folder = self.folder / "faults"
        marks = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        return sum(fault.mark in marks or fault.kind is FaultKind.SLOW for fault in self.trial.injections)

    def _document(self) -> dict[str, Any]:
        """What the last command printed; empty if it had no time to."""
        try:
            document = json.loads(self._output("json").read_text(encoding="utf-8"))
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    def _last_words(self) -> str:
        lines = self._output("log").read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else ""

    def _output(self, suffix: str) -> Path:
        return self.workload.runs / f"{self.name}.{suffix}"


def _left_after_grace(held: Held) -> tuple[str, ...]:
    """What is left over; processes among it are ended then, so that they are in nobody's way."""
    deadline_s = time.monotonic() + _GRACE_S
    while (left := held.left()) and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
    for pid in processes_of(held.run):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


class _Journals:
    """What the journals of a running run say of its processes and steps; each line is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.pids: dict[int, int] = {}
        self.first_spawned_s: float | None = None
        self.newest_step = -1

    def is_due(self, strike: Strike) -> bool:
        if self.first_spawned_s is None:
            return False
        if strike.after_s is not None:
            return time.monotonic() - self.first_spawned_s >= strike.after_s
        assert strike.step is not None
        return self.newest_step >= strike.step

    def read(self) -> None:
        for path in sorted(self._folder.glob("*.jsonl")):
            for line in self._new_lines(path):
                event = json.loads(line)
                if event["event"] == "spawned":
                    self.pids[event["rank"]] = event["pid"]
                    if self.first_spawned_s is None:
                        self.first_spawned_s = event["t_ns"] / 1e9
                elif event["event"] == "step":
                    self.newest_step = max(self.newest_step, event["step"])

    def _new_lines(self, path: Path) -> list[bytes]:
        """Whole lines that were written since; only those of the two kinds that are looked for."""
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read[path] = self._read.get(path, 0) + len(whole) + len(newline)
        return [
            line
            for line in whole.splitlines()
            if line.startswith((b'{"event":"spawned"', b'{"event":"step"'))
        ]
