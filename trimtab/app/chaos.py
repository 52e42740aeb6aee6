"""The verb ``chaos``: make things go wrong as scenario files say, and see whether the promises hold."""

import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.app.attempts import refuse_what_cannot_start
from trimtab.app.chaos_trials import TrialRun, Workload, make_trial
from trimtab.app.errors import FailedRunError, JobReadError
from trimtab.app.output import print_document, say
from trimtab.sim.chaos import Trial, Verdict, draw_trial, judge
from trimtab.spec import Engine
from trimtab.spec.scenarios import LoadedScenario, load_scenario
from trimtab.terms import ExitCode, InputError, RunState, format_seconds

_LIMIT_S = 120.0
"""A trial may take so much longer than ten undisturbed runs: every fault costs a detection and a start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A trial that was made and judged.

    Args:
        file: Of the scenario, as the user wrote it.
        scenario: Its name.
        trial: What was to go wrong.
        made: What was done.
        verdict: Whether it came to what it must come to.
    """

    file: str
    scenario: str
    trial: Trial
    made: TrialRun
    verdict: Verdict

    @property
    def repeat(self) -> str:
        """The command that makes the same faults again."""
        return f"trimtab chaos {shlex.quote(self.file)} --seed {self.trial.seed}"

    def document(self) -> dict[str, Any]:
        """For programs."""
        observed = self.made.observed
        return {
            "file": self.file,
            "scenario": self.scenario,
            "seed": self.trial.seed,
            "faults": list(self.trial.texts),
            "struck": observed.num_struck,
            "losses": self.made.num_lost,
            "attempts": self.made.attempts,
            "steps_lost": list(observed.steps_lost),
            "state": observed.state.value,
            "weights_sha256": observed.weights_sha256,
            "seconds": self.made.seconds,
            "holds": self.verdict.holds,
            "broken": list(self.verdict.broken),
            "leftovers": list(observed.leftovers),
            "repeat": self.repeat,
        }


def run_scenarios(paths: Sequence[str], *, seed: int | None, times: int, is_json: bool) -> int:
    """Make every trial of some scenario files; returns the exit code, 1 if something did not hold.

    Args:
        paths: The scenario files.
        seed: Of the first trial of each; from the clock if None.
        times: Trials of each, with this seed and the ones after it.
        is_json: Print one document instead of lines.

    Raises: InputError with everything that is wrong in all files, before anything is started.
    """
    started_s = time.monotonic()
    scenarios = dict(zip(paths, read_scenarios(paths), strict=True))
    first = int(time.time()) % 1_000_000 if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="trimtab-chaos-"))
    session = _Session(folder=folder)
    judged: list[Judged] = []
    try:
        with _ending_cleanly():
            for number in range(first, first + times):
                for path, loaded in scenarios.items():
                    judged.append(session.trial(path, loaded, number))
                    _tell(judged[-1], is_json=is_json)
    except (KeyboardInterrupt, SystemExit):
        say(f"interrupted; until then: {_sentence(totals_of(judged, time.monotonic() - started_s))}")
        raise
    finally:
        _keep_what_broke(folder, judged)
    totals = totals_of(judged, time.monotonic() - started_s)
    if is_json:
        print_document({"seed": first, **totals, "trials": [trial.document() for trial in judged]})
    else:
        print(_sentence(totals), flush=True)
    return ExitCode.DONE if totals["broken"] == 0 else ExitCode.RUN_FAILED


def _keep_what_broke(folder: Path, judged: Sequence[Judged]) -> None:
    """Leave the runs where they are if one of them did not hold, and say where; else remove them."""
    if all(trial.verdict.holds for trial in judged):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"the runs are in {folder}")


def read_scenarios(paths: Sequence[str]) -> list[LoadedScenario]:
    """The scenarios of some files, each with a workload that this machine can run.

    Raises: InputError with everything that is wrong in all of them.
    """
    found, errors = [], []
    for path in paths:
        try:
            found.append(_read_scenario(path))
        except InputError as error:
            errors.append(str(error))
    if errors:
        raise InputError("\n".join(errors))
    return found


def _read_scenario(path: str) -> LoadedScenario:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise JobReadError(f"{path}: cannot read the scenario: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise JobReadError(f"{path}: the scenario is not UTF-8 text") from error
    loaded = load_scenario(
        text, source=path, environment=os.environ, read=lambda name: Path(name).read_text(encoding="utf-8")
    )
    job = loaded.workload.job
    if job.script is not None or job.orchestration.engine is not Engine.LOCAL:
        raise InputError(f"{path}: a workload is a job of Trimtab's own loop under engine: local")
    refuse_what_cannot_start(loaded.workload)
    return loaded


@contextmanager
def _ending_cleanly() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: the run that is being made ends with it."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(ExitCode.TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(slots=True, kw_only=True)
class _Session:
    """One invocation: its folder of runs, and the undisturbed run of each workload, made once."""

    folder: Path
    undisturbed: dict[str, TrialRun] = field(default_factory=dict)
    num_runs: int = 0

    def trial(self, path: str, loaded: LoadedScenario, seed: int) -> Judged:
        """Make and judge one trial."""
        workload = self._workload(loaded)
        calm = self._undisturbed(loaded, workload)
        trial = draw_trial(loaded.scenario, seed=seed, devices=workload.devices)
        made = make_trial(workload, trial, name=self._name(loaded), limit_s=_LIMIT_S + 10 * calm.seconds)
        verdict = judge(
            loaded.scenario.expect, made.observed, undisturbed_sha256=calm.observed.weights_sha256
        )
        return Judged(file=path, scenario=loaded.scenario.scenario, trial=trial, made=made, verdict=verdict)

    def _workload(self, loaded: LoadedScenario) -> Workload:
        job_file = self.folder / f"{loaded.workload.digest()[:16]}.yaml"
        if not job_file.exists():
            job_file.write_text(loaded.workload.resolved_yaml(), encoding="utf-8")
        return Workload(
            job_file=job_file, runs=self.folder, devices=loaded.workload.job.orchestration.devices
        )

    def _undisturbed(self, loaded: LoadedScenario, workload: Workload) -> TrialRun:
        """The same workload without a fault.

        Raises: FailedRunError if it does not end well: nothing can be compared with it.
        """
        digest = loaded.workload.digest()
        if digest not in self.undisturbed:
            nothing = Trial(seed=0, injections=(), strikes=())
            made = make_trial(workload, nothing, name=self._name(loaded), limit_s=10 * _LIMIT_S)
            if made.observed.state is not RunState.DONE:
                raise FailedRunError(
                    f"{loaded.scenario.scenario}: the workload does not end well even without a fault: "
                    f"{made.observed.error}"
                )
            self.undisturbed[digest] = made
        return self.undisturbed[digest]

    def _name(self, loaded: LoadedScenario) -> str:
        """Of a run, on this machine only once: what is left over is found by it."""
        self.num_runs += 1
        return f"{loaded.scenario.scenario[:40]}-{os.getpid()}-{self.num_runs}"


def totals_of(judged: Sequence[Judged], seconds: float) -> dict[str, Any]:
    """The sums over trials."""
    return {
        "faults": sum(trial.made.observed.num_struck for trial in judged),
        "runs": len(judged),
        "losses": sum(trial.made.num_lost for trial in judged),
        "broken": sum(not trial.verdict.holds for trial in judged),
        "mismatches": sum(not trial.verdict.is_as_expected for trial in judged),
        "leftovers": sum(len(trial.made.observed.leftovers) for trial in judged),
        "seconds": seconds,
    }


def _sentence(totals: dict[str, Any]) -> str:
    return (
        f"{totals['faults']} faults struck in {totals['runs']} runs, {totals['losses']} ranks were lost: "
        f"{totals['mismatches']} mismatches, {totals['leftovers']} leftovers, {format_seconds(totals['seconds'])}"
    )


def _tell(judged: Judged, *, is_json: bool) -> None:
    for line in lines_of(judged):
        print(line, file=sys.stderr if is_json else sys.stdout, flush=True)


def lines_of(judged: Judged) -> Iterator[str]:
    """A trial for people; one that does not hold says how to have it again."""
    made, trial = judged.made, judged.trial
    yield (
        f"{'holds ' if judged.verdict.holds else 'BROKEN'}  {judged.scenario} seed {trial.seed}: "
        f"{made.observed.num_struck} of {trial.num_faults} faults struck, {made.num_lost} ranks lost, "
        f"{made.attempts} attempts, {format_seconds(made.seconds)}"
    )
    if judged.verdict.holds:
        return
    for sentence in judged.verdict.broken:
        yield f"        {sentence}"
    for text in trial.texts:
        yield f"        fault: {text}"
    yield f"        again: {judged.repeat}"
    yield f"        by hand: {shlex.join(('trimtab', *made.command))}"
    if made.folder is not None:
        yield f"        the run is {made.folder}"
