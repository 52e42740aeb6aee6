"""Starts Trimtab as a user would, by its command line: the only way in which a referee touches it."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import records
from verdicts import RefereeError

RUN_PREFIX = "referee-"
"""Runs are named after it and the referee's pid, so that no other run on the machine is taken for one."""

JOB = """
run: {name}
model: {{preset: gpt-3m, layers: 2, embed: 64, heads: 4, mlp: 128, dropout: 0.1}}
data: {{text: text, tokenizer: bytes, sequence: 32}}
train:
  steps: {steps}
  batch: 8
  microbatch: 1
  optimizer: {{adamw: {{lr: 1e-2}}}}
  lr_schedule: {{cosine: {{warmup: 5}}}}
  clip: 0.5
orchestration: {{devices: {devices}, price_usd_per_device_hour: 2.0}}
fault_tolerance: {{shares: 4, checkpoint: {{every: {every}, keep: 3}}}}
"""
"""LayerNorm, tied weights, dropout, clipping; documents of several lengths. A run is little more than its start."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command that has ended, with the referee's own clock around it (monotonic, ns)."""

    code: int
    stdout: str
    stderr: str
    started_ns: int
    ended_ns: int

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on its standard output.

        Raises: RefereeError with the end of what it said if there is none, or if it only names an error.
        """
        try:
            parsed: dict[str, Any] = json.loads(self.stdout)
        except json.JSONDecodeError as error:
            raise RefereeError(
                f"no JSON on standard output, exit code {self.code}: {self.stderr[-2000:]}"
            ) from error
        if parsed.keys() == {"error"}:
            raise RefereeError(str(parsed["error"]))
        return parsed


@dataclass(frozen=True, kw_only=True)
class Started:
    """A run in progress."""

    process: "subprocess.Popen[str]"
    folder: Path
    started_ns: int

    @property
    def agent(self) -> int:
        """The pid of the process that the referee started, in which the agent works."""
        return self.process.pid

    def wait_for(self, condition: Callable[[], bool], what: str, *, timeout_s: float = 120.0) -> None:
        """Look every 10 ms until ``condition`` holds.

        Raises: RefereeError if the run ends or the time is over first.
        """
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if self.process.poll() is not None:
                raise RefereeError(f"the run ended before {what}: {self.end().stderr[-2000:]}")
            if time.monotonic() > deadline_s:
                raise RefereeError(f"waited {timeout_s:g} s in vain for {what}")
            time.sleep(0.01)

    def end(self, *, timeout_s: float = 300.0) -> Ended:
        """Wait for the end of the command."""
        stdout, stderr = self.process.communicate(timeout=timeout_s)
        return Ended(
            code=self.process.returncode,
            stdout=stdout,
            stderr=stderr,
            started_ns=self.started_ns,
            ended_ns=time.monotonic_ns(),
        )


class Workplace:
    """A folder with a text and a job in it, where runs are made.

    Args:
        folder: Where; it exists.
        steps: Of the job.
        every: Steps between two checkpoints.
    """

    def __init__(self, folder: Path, *, steps: int, devices: int = 4, every: int | None = None) -> None:
        self.folder = folder
        self._name = f"{RUN_PREFIX}{os.getpid()}"
        write_text(folder / "text")
        job = JOB.format(name=self._name, steps=steps, devices=devices, every=every or max(1, steps // 2))
        (folder / "job.yaml").write_text(job, encoding="utf-8")

    def run(self, *arguments: str) -> Ended:
        """Make a run and wait for its end."""
        return self.trimtab("run", "job.yaml", "--json", *arguments)

    def start(self, *arguments: str) -> Started:
        """Make a run and return when its folder and its agent's journal are there."""
        before = set(self.runs())
        started_ns = time.monotonic_ns()
        process = self._popen("run", "job.yaml", "--json", *arguments)
        waiting = Started(process=process, folder=self.folder, started_ns=started_ns)
        waiting.wait_for(lambda: bool(set(self.runs()) - before), "a run's folder was there")
        (folder,) = set(self.runs()) - before
        started = Started(process=process, folder=folder, started_ns=started_ns)
        started.wait_for((folder / "journal" / "agent-1.jsonl").exists, "an agent's journal was there")
        return started

    def directory(self, document: dict[str, Any]) -> Path:
        """Where the run of a report is; Trimtab prints it relative to where it was called."""
        return (self.folder / str(document["directory"])).resolve()

    def runs(self) -> list[Path]:
        """The runs made so far."""
        return sorted((self.folder / "runs").glob(f"{self._name}-*"))

    def trimtab(self, *arguments: str, timeout_s: float = 300.0) -> Ended:
        """Any command, to its end."""
        started_ns = time.monotonic_ns()
        process = self._popen(*arguments)
        return Started(process=process, folder=self.folder, started_ns=started_ns).end(timeout_s=timeout_s)

    def _popen(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "trimtab", *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )


@contextlib.contextmanager
def temporary_folder(*, is_kept: bool) -> Iterator[Path]:
    """A new folder for runs, removed at the end unless it shall be kept, in which case its place is printed."""
    folder = Path(tempfile.mkdtemp(prefix=RUN_PREFIX))
    try:
        yield folder
    finally:
        if is_kept:
            print(f"runs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def write_text(folder: Path, *, num_documents: int = 40) -> None:
    """A corpus of words, the same at every call; documents of several lengths, so that samples are ragged."""
    chosen = random.Random(0)
    words = [
        "amber",
        "bolt",
        "cedar",
        "delta",
        "ember",
        "flint",
        "grove",
        "harbor",
        "inlet",
        "jib",
        "keel",
        "lee",
    ]
    folder.mkdir(exist_ok=True)
    for number in range(num_documents):
        text = " ".join(chosen.choice(words) for _ in range(150 + 11 * number))
        (folder / f"{number:02}.txt").write_text(text, encoding="utf-8")


def wait_for_step(started: Started, step: int) -> None:
    """Return when some rank has committed ``step`` (from 0)."""
    started.wait_for(lambda: records.newest_commit(started.folder) >= step, f"step {step} was committed")
