"""One trial: a real short run of the job through its engine, watched, and what it came to."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trimtab.app.attempts import refuse_what_cannot_start
from trimtab.app.job_reading import read_job
from trimtab.app.launching import device_price
from trimtab.app.run_folders import is_alive
from trimtab.app.run_records import read_records
from trimtab.app.tuning.measures import Facts, curve_of, value_of
from trimtab.app.tuning.studies import Outcome
from trimtab.app.tuning.trial_making import TrialInterruptedError
from trimtab.app.tuning.trial_settings import Choices, overrides_of, settings_of
from trimtab.cost.search.tuning import Curve, Value
from trimtab.policy.trials import TrialState
from trimtab.spec.tunings import Tuning
from trimtab.terms import ExitCode, InfeasibleError, TrimtabError

TRIALS_FOLDER = "trials"
"""Of a study, with the runs of its trials."""

_LOOK_S = 0.5
"""Between two looks at what a run has committed: each costs a few milliseconds of one core."""

_GRACE_S = 60.0
"""A run that was asked to end may take so long, and is killed then."""

_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|DefaultCPUAllocator|bad_alloc|MemoryError",
    re.IGNORECASE,
)
"""What allocators of the CPU and of CUDA say."""


@dataclass(slots=True, kw_only=True)
class RealTrials:
    """Trials as runs.

    Args:
        job: Path of the job file.
        overrides: That hold for all trials, ``--set`` of the user and those of every trial.
        tuning: What is asked.
        choices: Between strategies and formulas.
        folder: Of the study.
    """

    job: str
    overrides: Sequence[str]
    tuning: Tuning
    choices: Choices
    folder: Path
    stopped_by: int = 0
    _refusals: dict[str, str] = field(default_factory=dict)

    def refusal(self, params: Mapping[str, Value]) -> str:
        """As the interface says: the job is read, and whatever can be refused before a start is."""
        overrides = self._overrides(params)
        key = json.dumps(overrides)
        if key not in self._refusals:
            self._refusals[key] = _refusal(self.job, overrides)
        return self._refusals[key]

    def refused(self) -> dict[str, int]:
        """Why combinations were refused, each with how many were; those that differ in numbers only count together."""
        reasons = [reason for reason in self._refusals.values() if reason]
        counts = Counter(_without_numbers(reason) for reason in reasons)
        first = {_without_numbers(reason): reason for reason in reversed(reasons)}
        return {first[kind]: count for kind, count in counts.items()}

    def devices_of(self, params: Mapping[str, Value]) -> int:
        """As the interface says."""
        return read_job(self.job, self._overrides(params)).job.orchestration.devices

    def make(
        self, number: int, params: Mapping[str, Value], *, is_behind: Callable[[Curve], bool]
    ) -> Outcome:
        """As the interface says."""
        return self.run(f"t-{number}", self._overrides(params), is_behind=is_behind)

    def is_at_work(self, number: int) -> bool:
        """As the interface says."""
        return any(is_alive(folder) for folder in (self.folder / TRIALS_FOLDER).glob(f"t-{number}-*"))

    def run(
        self, name: str, overrides: Sequence[str], *, is_behind: Callable[[Curve], bool] | None = None
    ) -> Outcome:
        """Make one run.

        Args:
            name: Of the run; its folder is ``<name>-<N>``.
            overrides: Of its job.
            is_behind: As in ``make``; never asked if None.

        Raises: TrialInterruptedError if this process was told to end.
        """
        loaded = read_job(self.job, overrides)
        facts = Facts(
            skip=self.tuning.trial.skip,
            devices=loaded.job.orchestration.devices,
            usd_per_device_hour=device_price(loaded.job),
        )
        started_s = time.monotonic()
        runs = self.folder / TRIALS_FOLDER
        sets = [
            part
            for text in (*overrides, f"run={name}", f"orchestration.runs={runs}")
            for part in ("--set", text)
        ]
        known = {path.name for path in runs.glob(f"{name}-*")}
        command = [
            sys.executable,
            "-m",
            "trimtab.app.tied_run",
            str(os.getpid()),
            "run",
            self.job,
            "--json",
        ]
        runs.mkdir(exist_ok=True)
        said = runs / f"{name}.json"
        with (runs / f"{name}.log").open("ab") as log, said.open("wb") as document:
            process = subprocess.Popen([*command, *sets], stdout=document, stderr=log)
        folder: Path | None = None
        is_cut = False
        try:
            while process.poll() is None:
                if self.stopped_by:
                    raise TrialInterruptedError(self.stopped_by)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_LOOK_S)
                folder = folder or _new_folder(runs, name, known)
                if is_behind is not None and folder is not None and not is_cut:
                    is_cut = is_behind(self._curve(folder, facts))
                    if is_cut:
                        _end(process)
        finally:
            if process.poll() is None:
                _end(process)
        folder = folder or _new_folder(runs, name, known)
        seconds = time.monotonic() - started_s
        report = _document(said.read_bytes())
        return self._outcome(process.returncode, report, folder, facts, seconds=seconds, is_cut=is_cut)

    def _overrides(self, params: Mapping[str, Value]) -> list[str]:
        return [*self.overrides, *overrides_of(settings_of(params, self.choices))]

    def _curve(self, folder: Path, facts: Facts) -> dict[int, float]:
        try:
            return curve_of(self.tuning.objectives[0], read_records(folder), facts)
        except (OSError, TrimtabError):  # a run that has only just begun
            return {}

    def _outcome(
        self,
        code: int,
        document: Mapping[str, Any],
        folder: Path | None,
        facts: Facts,
        *,
        seconds: float,
        is_cut: bool,
    ) -> Outcome:
        error = str(document.get("error") or "")
        usd = float(document.get("cost_usd") or 0.0)
        outcome = Outcome(
            state=TrialState.FAILED, reason=error, seconds=seconds, usd=usd, folder=str(folder or "")
        )
        if code == ExitCode.INFEASIBLE or _OUT_OF_MEMORY.search(error):
            return replace(outcome, state=TrialState.OUT_OF_MEMORY)
        if folder is None or (code != ExitCode.DONE and not is_cut):
            return replace(
                outcome, reason=error or f"the run ended with {code}; {TRIALS_FOLDER}/ has its log"
            )
        records = read_records(folder)
        curve = curve_of(self.tuning.objectives[0], records, facts)
        values = {
            objective.value: value
            for objective in self.tuning.objectives
            if (value := value_of(objective, records, facts)) is not None
        }
        if is_cut:
            return replace(
                outcome, state=TrialState.CUT_SHORT, values=values, curve=curve, reason="behind the others"
            )
        missing = [objective.value for objective in self.tuning.objectives if objective.value not in values]
        if missing:
            return replace(outcome, reason=f"the run tells no {', '.join(missing)}")
        return replace(outcome, state=TrialState.DONE, values=values, curve=curve)


def _without_numbers(reason: str) -> str:
    return re.sub(r"[0-9.]+", "0", reason)


def _refusal(job: str, overrides: Sequence[str]) -> str:
    try:
        refuse_what_cannot_start(read_job(job, overrides))
    except InfeasibleError as error:
        return f"does not fit: {error}"
    except TrimtabError as error:
        # Where an override stands among the others says nothing to whoever wrote the tuning file.
        return re.sub(r"(?m)^--set #\d+(:\d+)*  ", "", str(error))
    return ""


def _new_folder(runs: Path, name: str, known: set[str]) -> Path | None:
    return next((path for path in runs.glob(f"{name}-*") if path.is_dir() and path.name not in known), None)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _document(text: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
