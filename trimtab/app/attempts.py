"""One attempt of a run, from the launch to the report, and the verb ``run``, which makes the first."""

import os
import signal
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab import __version__
from trimtab.app.job_reading import read_job, say_warnings
from trimtab.app.launching import build_launch
from trimtab.app.live_view import open_view
from trimtab.app.machines import find_machine
from trimtab.app.output import json_text, print_document, say
from trimtab.app.replicas import refuse_what_cannot_fit
from trimtab.app.reports import folder_report, print_report, write_report
from trimtab.app.run_folders import (
    ABOUT_FILE,
    RESOLVED_FILE,
    at_work,
    create_run,
    next_attempt,
    next_incarnation,
    next_run,
)
from trimtab.app.runnable import refuse_what_cannot_run
from trimtab.engines import Outcome, load_engine
from trimtab.engines.launch import Launch, inherited_environment
from trimtab.runtime.data.errors import DataWarning
from trimtab.runtime.data.locate import locate
from trimtab.runtime.data.tokenizers import choose_tokenizer
from trimtab.runtime.weights.jobs import check_job_weights
from trimtab.spec import Job, LoadedJob
from trimtab.spec.injections import Injection, parse_injections
from trimtab.spec.resolved import REDACTED, is_secret
from trimtab.terms import ExitCode, RunState


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
    loaded = read_job(path, wishes.overrides)
    say_warnings(loaded)
    refuse_what_cannot_run(loaded)
    refuse_what_cannot_fit(loaded, find_machine())
    refuse_missing_data(loaded.job)
    check_job_weights(loaded.job)
    injections = parse_injections(wishes.injections, devices=loaded.job.orchestration.devices)
    runs = Path(loaded.job.orchestration.runs)
    if is_dry_run:
        _print_plan(loaded, launch_of(loaded, next_run(runs, loaded.job.run), injections), wishes)
        return ExitCode.DONE
    launch_of(
        loaded, next_run(runs, loaded.job.run), injections
    )  # refuses what is wrong before a folder is made
    folder = create_run(runs, loaded.job.run)
    (folder / RESOLVED_FILE).write_text(loaded.resolved_yaml(), encoding="utf-8")
    about = {"job_file": path, "working_folder": os.getcwd(), "trimtab": __version__}
    (folder / ABOUT_FILE).write_text(json_text(about) + "\n", encoding="utf-8")
    return run_attempt(loaded, folder, injections, wishes)


def refuse_missing_data(job: Job) -> None:
    """Look for the job's text and tokenizer now; a rank would look, too, but only after all of them have started.

    Raises: DataError if one is not there, or is not what it should be.
    """
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
    engine = load_engine(loaded.job.orchestration.engine)
    with at_work(folder):
        launch = launch_of(loaded, folder, injections)
        say(f"run {launch.run}, attempt {launch.attempt}, in {launch.folder}")
        num_steps = loaded.job.train.steps
        with open_view(launch, num_steps=num_steps, is_stdout_free=not wishes.is_json) as observe:
            outcome = engine.run(launch, observe)
        report = folder_report(folder, outcome.results)
        write_report(folder, report)
    print_report(report, is_json=wishes.is_json)
    if outcome.error:
        say(outcome.error)
    return exit_code_of(outcome)


def launch_of(loaded: LoadedJob, folder: Path, injections: Sequence[Injection]) -> Launch:
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
    )


def exit_code_of(outcome: Outcome) -> ExitCode:
    """What the process says at the end of an attempt."""
    if outcome.state is RunState.DONE:
        return ExitCode.DONE
    if outcome.state is RunState.FAILED:
        return ExitCode.INPUT_WRONG if outcome.is_input_error else ExitCode.RUN_FAILED
    return ExitCode.INTERRUPTED if outcome.signal_number == signal.SIGINT else ExitCode.TERMINATED


def _print_plan(loaded: LoadedJob, launch: Launch, wishes: Wishes) -> None:
    shown = {name: REDACTED if is_secret(name) else value for name, value in launch.environment.items()}
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
