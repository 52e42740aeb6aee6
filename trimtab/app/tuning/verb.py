"""The verb ``tune``: begin a study of a job, or go on with one; work on it, confirm what was found, say it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.app.deciding import read_decided_job
from trimtab.app.errors import JobReadError, StudyError
from trimtab.app.job_reading import read_job, say_warnings
from trimtab.app.launching import device_price
from trimtab.app.output import print_document, say
from trimtab.app.tuning.findings import Gain
from trimtab.app.tuning.owners import is_gone, own_name
from trimtab.app.tuning.reports import StudyReport, trial_line
from trimtab.app.tuning.studies import STUDY_FILE, Study, TrialRow, create_study, is_study
from trimtab.app.tuning.trial_making import TrialInterruptedError
from trimtab.app.tuning.trial_runs import RealTrials
from trimtab.app.tuning.trial_settings import (
    Choices,
    changed_settings,
    choices_from,
    choices_of,
    overrides_of,
    settings_of,
    space_of,
)
from trimtab.app.tuning.workers import Rules, Worker
from trimtab.policy.trials import TrialBudget, TrialState
from trimtab.spec import LoadedJob
from trimtab.spec.tunings import Tuning, TuningObjective, load_tuning, pruning_of
from trimtab.terms import ExitCode, InfeasibleError, InputError

DEFAULT_TUNING = """\
# What trimtab tune tries when no file says it: the planner's best strategies.
objectives: [tokens_per_s]
strategies: {planned: 4}
"""

_CONFIRMING = "confirming"
"""The note that says who runs the pairs."""


def tune(path: str, space: Path | None, overrides: Sequence[str], *, is_json: bool) -> int:
    """Tune a job, or go on with a study; returns the exit code.

    Args:
        path: A job file, or the folder of a study.
        space: The tuning file; for a new study only.
        overrides: What stood after each ``--set``; for a new study only.
        is_json: Print one document instead of lines.

    Raises: InputError for what is wrong with job, tuning file or study, before anything is started; InfeasibleError
        if no trial could be measured.
    """
    if is_study(Path(path)):
        if space is not None or overrides:
            raise InputError(
                f"{path} is a study, which keeps what it was asked; a new one takes the job file"
            )
        session = _opened(Study(Path(path)))
    else:
        session = _begun(path, space, overrides)
    return session.run(is_json=is_json)


@dataclass(slots=True, kw_only=True)
class _Session:
    """This process at work on a study."""

    study: Study
    tuning: Tuning
    loaded: LoadedJob
    choices: Choices
    maker: RealTrials
    rules: Rules
    children: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def run(self, *, is_json: bool) -> int:
        """Work until nothing is left to do, confirm, say it."""
        say(
            f"study {self.study.folder.name}, in {self.study.folder}; its picture: {self.study.folder / 'picture.html'}"
        )
        worker = Worker(study=self.study, rules=self.rules, maker=self.maker, tell=self._tell)
        with self._ending_cleanly():
            try:
                self._start_others()
                reason = worker.work()
                self._wait_for_others()
                gain = self._confirmed()
            except TrialInterruptedError as interrupted:
                say(f"interrupted; `trimtab tune {self.study.folder}` goes on")
                return 128 + interrupted.number
        report = self._report(reason, gain)
        report.write()
        if is_json:
            print_document(report.document())
        else:
            for line in report.lines():
                print(line)
        if not any(row.trial.state is TrialState.DONE for row in report.rows):
            raise InfeasibleError(f"no trial of {self.study.folder.name} could be measured")
        return ExitCode.DONE

    def _tell(self, row: TrialRow) -> None:
        say(trial_line(row, self.rules.objectives))
        self._report("", None).write()

    def _report(self, reason: str, gain: Gain | None) -> StudyReport:
        return StudyReport(
            folder=self.study.folder,
            job=self.maker.job,
            loaded=self.loaded,
            choices=self.choices,
            objectives=self.rules.objectives,
            rows=self.study.rows(),
            refused=self.maker.refused(),
            gain=gain,
            reason=reason,
        )

    def _start_others(self) -> None:
        """The other workers, if the study has several; they are told apart by what started them."""
        if os.environ.get(_WORKER_VARIABLE):
            return
        command = [sys.executable, "-m", "trimtab", "tune", str(self.study.folder), "--json"]
        for _ in range(self.tuning.workers - 1):
            self.children.append(
                subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, env={**os.environ, _WORKER_VARIABLE: "1"}
                )
            )

    def _wait_for_others(self) -> None:
        for child in self.children:
            while child.poll() is None:
                if self.maker.stopped_by:
                    raise TrialInterruptedError(self.maker.stopped_by)
                time.sleep(0.1)

    def _confirmed(self) -> Gain | None:
        """The best trial and the job as it is, run by turns; None if there is nothing to confirm.

        What was run is kept: a process that goes on with the study does not run it again.
        """
        best = self._report("", None).best
        if best is None or not self.tuning.confirm or os.environ.get(_WORKER_VARIABLE):
            return None
        with self.study.transaction() as now:
            other = now.notes().get(_CONFIRMING)
            if other is not None and other != own_name() and not is_gone(other):
                return None
            now.note(_CONFIRMING, own_name())
        objective = self.rules.objectives[0]
        changes = changed_settings(self.loaded, settings_of(best.params, self.choices))
        say(f"confirming trial {best.trial.number} against the job as it is, {self.tuning.confirm} pairs")
        pairs: list[tuple[float, float]] = []
        for number in range(self.tuning.confirm):
            found: dict[str, float | None] = {}
            # By turns, each first in every other pair: a machine that warms up or fills up favours neither.
            order = ("own", "best") if number % 2 == 0 else ("best", "own")
            for which in order:
                found[which] = self._again(number, which, changes if which == "best" else {}, objective)
            own, better = found["own"], found["best"]
            if own is None or better is None:
                return None
            pairs.append((own, better))
        return Gain(objective=objective, pairs=pairs)

    def _again(
        self, number: int, which: str, changes: dict[str, Any], objective: TuningObjective
    ) -> float | None:
        """One run of a pair; both of a pair have one seed of the data and the weights."""
        key = f"pair {number} {which}"
        before = self.study.asked().get(key)
        if before is not None:
            return float(before)
        seed = self.loaded.job.train.seed + number
        overrides = [*self.maker.overrides, *overrides_of({**changes, "train.seed": seed})]
        outcome = self.maker.run(f"c-{number}-{which}", overrides)
        value = outcome.values.get(objective.value)
        with self.study.transaction() as now:
            now.say(time.time(), None, f"{key}: {outcome.state.value} {outcome.reason}".rstrip())
            if value is not None:
                now.note(key, value)
        return value

    @contextmanager
    def _ending_cleanly(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the trial at hand, which another worker may take up; so do the other workers."""

        def stop(number: int, frame: object) -> None:
            self.maker.stopped_by = number

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for child in self.children:
                if child.poll() is None:
                    child.terminate()
                child.wait()


_WORKER_VARIABLE = "TRIMTAB_TUNE_WORKER"
"""Set in workers that a worker started: they start no others, and confirm nothing."""


def _begun(path: str, space: Path | None, overrides: Sequence[str]) -> _Session:
    loaded = read_decided_job(path, overrides)
    say_warnings(loaded)
    if loaded.job.script is not None:
        raise InputError(f"{path}: a script has no keys that a trial could set")
    source = str(space) if space is not None else "the default tuning"
    try:
        text = space.read_text(encoding="utf-8") if space is not None else DEFAULT_TUNING
    except (OSError, UnicodeDecodeError) as error:
        raise JobReadError(f"{space}: cannot read the tuning file: {error}") from error
    tuning = load_tuning(text, source=source)
    if TuningObjective.USD_PER_MILLION_TOKENS in tuning.objectives or tuning.budget.usd is not None:
        _refuse_without_price(loaded, source)
    choices = choices_of(loaded, tuning)
    # What auto was resolved to is the job's own strategy, and stays it.
    own = [*overrides, *overrides_of({"parallelism": loaded.job.parallelism.text})]
    refuse_unknown_keys(path, own, tuning, source)
    study = create_study(
        Path(loaded.job.orchestration.runs),
        f"{loaded.job.run}-tune",
        {
            "job": path,
            "overrides": own,
            "tuning": text,
            "source": source,
            "choices": choices.document(),
            "working_folder": os.getcwd(),
        },
    )
    return _opened(study)


def _opened(study: Study) -> _Session:
    asked = study.asked()
    try:
        path, own, text = asked["job"], asked["overrides"], asked["tuning"]
        working_folder = asked["working_folder"]
        choices = choices_from(asked["choices"])
    except KeyError as error:
        raise StudyError(f"{study.folder / STUDY_FILE} does not say {error}; begin a new study") from error
    if os.path.realpath(working_folder) != os.path.realpath(os.getcwd()):
        # Paths in the job are relative to where the study was begun, as they are for a run that is resumed.
        study = Study(study.folder.resolve())
        os.chdir(working_folder)
    tuning = load_tuning(text, source=asked["source"])
    loaded = read_job(path, own)
    maker = RealTrials(
        job=path,
        overrides=_of_every_trial(path, own, loaded, tuning),
        tuning=tuning,
        choices=choices,
        folder=study.folder,
    )
    devices = tuning.budget.devices or loaded.job.orchestration.devices * tuning.workers
    return _Session(
        study=study,
        tuning=tuning,
        loaded=loaded,
        choices=choices,
        maker=maker,
        rules=Rules(
            space=space_of(loaded, tuning, choices),
            objectives=tuning.objectives,
            budget=TrialBudget(
                trials=tuning.budget.trials,
                seconds=None if tuning.budget.minutes is None else 60 * tuning.budget.minutes,
                usd=tuning.budget.usd,
                devices=devices,
                reserved=2 * tuning.confirm,
            ),
            prune=pruning_of(tuning),
            lease_s=tuning.lease,
            seed=tuning.seed,
        ),
    )


def _of_every_trial(path: str, own: Sequence[str], loaded: LoadedJob, tuning: Tuning) -> list[str]:
    """What every trial sets besides its own: its length, and no saves where nothing depends on them."""
    steps: dict[str, Any] = {"train.steps": tuning.trial.steps}
    if loaded.job.train.epochs is not None:
        steps["train.epochs"] = None
    overrides = [*own, *overrides_of(steps)]
    quiet = [*overrides, *overrides_of({"fault_tolerance.checkpoint.every": "off"})]
    varied = [knob.key for knob in tuning.knobs]
    if any(key.startswith("fault_tolerance.checkpoint") for key in varied):
        return overrides
    try:
        read_job(path, quiet)
    except InputError:  # what the job does at a loss needs saves
        return overrides
    return quiet


def refuse_unknown_keys(path: str, overrides: Sequence[str], tuning: Tuning, source: str) -> None:
    """Refuse a knob none of whose values the job takes: a key that there is not, or values of the wrong kind.

    Raises: InputError with the job's own words for its first value.
    """
    for knob in tuning.knobs:
        values = knob.values or knob.between or ()
        errors = []
        for value in values:
            try:
                read_job(path, [*overrides, *overrides_of({knob.key: value})])
            except InputError as error:
                errors.append(error)
        if values and len(errors) == len(values):
            raise InputError(f"{source}: the job takes no value of the knob {knob.key}:\n{errors[0]}")


def _refuse_without_price(loaded: LoadedJob, source: str) -> None:
    if not device_price(loaded.job):
        raise InputError(
            f"{source}: dollars are asked for, and the job knows no price above 0\n"
            "  Set orchestration.price_usd_per_device_hour."
        )
