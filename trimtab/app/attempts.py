"""One attempt of a run, from the launch to the report, and the verb ``run``, which makes the first."""

import json
import os
import re
import signal
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.app.deciding import read_decided_job
from trimtab.app.job_reading import read_job_text, say_warnings
from trimtab.app.launching import build_launch
from trimtab.app.live_view import open_view
from trimtab.app.machines import find_machine
from trimtab.app.output import json_text, print_document, say
from trimtab.app.replicas import refuse_what_cannot_fit
from trimtab.app.reports import FolderReport, folder_report, print_report, write_report
from trimtab.app.run_folders import (
    ABOUT_FILE,
    RESOLVED_FILE,
    at_work,
    create_run,
    job_file_of,
    next_attempt,
    next_incarnation,
    next_run,
)
from trimtab.app.runnable import refuse_what_cannot_run
from trimtab.engines import Observer, Outcome, load_engine
from trimtab.engines.interfaces import refuse_wrong_network
from trimtab.engines.launch import Launch, inherited_environment
from trimtab.runtime.data.errors import DataWarning
from trimtab.runtime.data.locate import locate
from trimtab.runtime.data.tokenizers import choose_tokenizer
from trimtab.runtime.weights.jobs import check_job_weights
from trimtab.spec import Job, LoadedJob
from trimtab.spec.injections import Injection, parse_injections
from trimtab.spec.resolved import REDACTED, is_secret
from trimtab.terms import ExitCode, InputError, RunState
from trimtab.terms.version import __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the command line asks for beside the job: values of ``--set`` and ``--inject``, and ``--json``."""

    overrides: Sequence[str] = ()
    injections: Sequence[str] = ()
    is_json: bool = False


def run_job(path: str, wishes: Wishes, *, is_dry_run: bool) -> int:
    """Train what a job file says, in a new run; returns the exit code.

    A dry run prints what would be started, secrets left out; it starts and writes nothing.
    """
    return _run_loaded(read_decided_job(path, wishes.overrides), wishes, job_file=path, is_dry_run=is_dry_run)


def run_script(path: str, arguments: Sequence[str], wishes: Wishes, *, is_dry_run: bool) -> int:
    """Run a program of the user's without a job file, in a new run that is named after it; returns the exit code."""
    loaded = read_job_text(script_job(path, arguments), source="--script", overrides=wishes.overrides)
    return _run_loaded(loaded, wishes, job_file=None, is_dry_run=is_dry_run)


def script_job(path: str, arguments: Sequence[str]) -> str:
    """The job file of a script, with nothing but its name and its program.

    >>> print(script_job("my_loops/Train 2.py", ["--lr", "0.1"]))
    {"run": "train-2", "script": {"file": "my_loops/Train 2.py", "args": ["--lr", "0.1"]}}
    """
    name = re.sub(r"[^a-z0-9]+", "-", Path(path).stem.lower()).strip("-")[:63] or "script"
    return json.dumps({"run": name, "script": {"file": path, "args": list(arguments)}})


def _run_loaded(loaded: LoadedJob, wishes: Wishes, *, job_file: str | None, is_dry_run: bool) -> int:
    say_warnings(loaded)
    refuse_what_cannot_start(loaded)
    if is_dry_run:
        injections = parse_injections(wishes.injections, devices=loaded.job.orchestration.devices)
        folder = next_run(Path(loaded.job.orchestration.runs), loaded.job.run)
        _print_plan(loaded, launch_of(loaded, folder, injections, job_file=job_file), wishes)
        return ExitCode.DONE
    folder, injections = begin_run(loaded, job_file=job_file, injections=wishes.injections)
    return run_attempt(loaded, folder, injections, wishes)


def refuse_what_cannot_start(loaded: LoadedJob) -> None:
    """Refuse a job that this machine cannot run, before anything is written.

    Raises: StrategyError, InfeasibleError or DataError.
    """
    refuse_what_cannot_run(loaded)
    refuse_what_cannot_fit(loaded, find_machine())
    refuse_missing_data(loaded.job)
    check_job_weights(loaded.job)


def begin_run(
    loaded: LoadedJob, *, job_file: str | None, injections: Sequence[str]
) -> tuple[Path, tuple[Injection, ...]]:
    """Make the folder of a new run, with its resolved job; returns it with the faults to make happen.

    Args:
        loaded: The job, which was not refused.
        job_file: The path of the job file, as the user wrote it; None if there is none.
        injections: What stood after each ``--inject``.

    Raises: SpecError or UnknownNameError for what is wrong, before a folder is made.
    """
    parsed = tuple(parse_injections(injections, devices=loaded.job.orchestration.devices))
    runs = Path(loaded.job.orchestration.runs)
    refuse_wrong_network(launch_of(loaded, next_run(runs, loaded.job.run), parsed, job_file=job_file))
    folder = create_run(runs, loaded.job.run)
    (folder / RESOLVED_FILE).write_text(loaded.resolved_yaml(), encoding="utf-8")
    about = {"job_file": job_file, "working_folder": os.getcwd(), "trimtab": __version__}
    (folder / ABOUT_FILE).write_text(json_text(about) + "\n", encoding="utf-8")
    return folder, parsed


def refuse_missing_data(job: Job) -> None:
    """Look for the job's text and tokenizer, or its script; a rank would look, too, but only after all have started.

    Raises: DataError if one is not there, or is not what it should be; InputError if the script is not.
    """
    if job.script is not None:
        if not Path(job.script.file).is_file():
            raise InputError(
                f"there is no script {job.script.file} in {Path.cwd()}; its path is relative to the working folder"
            )
        return
    tokenizer = job.data.tokenizer
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        locate(job.data.text)
        choose_tokenizer(tokenizer if isinstance(tokenizer, str) else tokenizer.model_dump())
    for warning in caught:
        say(f"warning: {warning.message}")


def run_attempt(loaded: LoadedJob, folder: Path, injections: Sequence[Injection], wishes: Wishes) -> int:
    """Make the next attempt of a run, under the engine that its job names; returns the exit code.

    Raises: RunStateError if somebody is at work in the run; LaunchError if a process could not be started.
    """
    say(f"run {folder.name}, attempt {next_attempt(folder)}, in {folder.resolve()}")
    num_steps = loaded.job.train.steps

    def view(launch: Launch) -> AbstractContextManager[Observer]:
        return open_view(launch, num_steps=num_steps, is_stdout_free=not wishes.is_json)

    outcome, report = make_attempt(loaded, folder, injections, view)
    print_report(report, is_json=wishes.is_json)
    if outcome.error:
        say(outcome.error)
    return exit_code_of(outcome)


def make_attempt(
    loaded: LoadedJob,
    folder: Path,
    injections: Sequence[Injection],
    view: Callable[[Launch], AbstractContextManager[Observer]],
) -> tuple[Outcome, FolderReport]:
    """Make the next attempt of a run and write its report; says nothing but to the view.

    Raises: RunStateError if somebody is at work in the run; LaunchError if a process could not be started.
    """
    engine = load_engine(loaded.job.orchestration.engine)
    with at_work(folder):
        launch = launch_of(loaded, folder, injections, job_file=job_file_of(folder))
        with view(launch) as observe:
            outcome = engine.run(launch, observe)
        report = folder_report(folder, outcome.results)
        write_report(folder, report)
    return outcome, report


def launch_of(
    loaded: LoadedJob, folder: Path, injections: Sequence[Injection], *, job_file: str | None
) -> Launch:
    """What the next attempt of a run starts; the folder need not be there yet."""
    attempt = next_attempt(folder)
    return build_launch(
        loaded.job,
        folder=folder,
        attempt=attempt,
        first_incarnation=next_incarnation(folder),
        injections=injections,
        is_resumed=attempt > 1,
        inherited=inherited_environment(),
        working_folder=Path.cwd(),
        machine=find_machine(),
        job_file=job_file,
    )


def exit_code_of(outcome: Outcome) -> ExitCode:
    """What the process says at the end of an attempt."""
    if outcome.state is RunState.DONE:
        return ExitCode.DONE
    if outcome.state is RunState.FAILED:
        if outcome.is_cut_off:
            return ExitCode.CUT_OFF
        return ExitCode.INPUT_WRONG if outcome.is_input_error else ExitCode.RUN_FAILED
    return ExitCode.INTERRUPTED if outcome.signal_number == signal.SIGINT else ExitCode.TERMINATED


def _print_plan(loaded: LoadedJob, launch: Launch, wishes: Wishes) -> None:
    keys = loaded.job.fault_tolerance.checkpoint.key_variables
    shown = {
        name: REDACTED if is_secret(name) or name in keys else value
        for name, value in launch.environment.items()
    }
    launch = replace(launch, environment=shown)
    request = load_engine(loaded.job.orchestration.engine).request(launch)
    if not wishes.is_json:
        print(request.describe())
        return
    print_document(
        {
            "run": launch.run,
            "directory": str(launch.folder),
            "processes": request.num_processes,
            "command": request.command(),
            "environment": shown,
            "settings": launch.rank_settings,
        }
    )
