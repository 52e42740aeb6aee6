"""One attempt of a run, from the job file to the report: the verbs ``run`` and ``resume``."""

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab import __version__
from trimtab.app.job_reading import read_job
from trimtab.app.launching import build_launch
from trimtab.app.live_view import open_view
from trimtab.app.output import json_text, print_document, say
from trimtab.app.reports import build_report, report_text
from trimtab.app.run_folders import (
    REPORT_FILE,
    RESOLVED_FILE,
    at_work,
    create_run,
    find_run,
    next_attempt,
    next_run,
)
from trimtab.engines.launch import Launch, inherited_environment
from trimtab.engines.local.agent import Agent, Outcome
from trimtab.spec import LoadedJob
from trimtab.spec.injections import Injection, parse_injections
from trimtab.spec.resolved import REDACTED, is_secret
from trimtab.terms import ExitCode, RunState

_ABOUT_FILE = "run.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the command line asks for beside the job."""

    overrides: Sequence[str] = ()
    injections: Sequence[str] = ()
    is_json: bool = False


def run_job(path: str, wishes: Wishes, *, is_dry_run: bool) -> int:
    """Train what a job file says, in a new run; returns the exit code.

    A dry run prints what would be started, secrets left out, and starts and writes nothing.
    """
    loaded = read_job(path, wishes.overrides)
    injections = parse_injections(wishes.injections, devices=loaded.job.orchestration.devices)
    runs = Path(loaded.job.orchestration.runs)
    if is_dry_run:
        _print_plan(_launch(loaded, next_run(runs, loaded.job.run), 1, injections), wishes)
        return ExitCode.DONE
    folder = create_run(runs, loaded.job.run)
    (folder / RESOLVED_FILE).write_text(loaded.resolved_yaml(), encoding="utf-8")
    about = {"job_file": path, "working_folder": os.getcwd(), "trimtab": __version__}
    (folder / _ABOUT_FILE).write_text(json_text(about) + "\n", encoding="utf-8")
    with at_work(folder):
        return _attempt(_launch(loaded, folder, 1, injections), wishes)


def resume_run(text: str, wishes: Wishes) -> int:
    """Go on with a run from its newest checkpoint, in the same folder; returns the exit code."""
    folder = find_run(text).resolve()
    loaded = read_job(str(folder / RESOLVED_FILE), wishes.overrides)
    injections = parse_injections(wishes.injections, devices=loaded.job.orchestration.devices)
    with at_work(folder):
        attempt = next_attempt(folder)
        os.chdir(json.loads((folder / _ABOUT_FILE).read_text(encoding="utf-8"))["working_folder"])
        return _attempt(_launch(loaded, folder, attempt, injections), wishes)


def _launch(loaded: LoadedJob, folder: Path, attempt: int, injections: Sequence[Injection]) -> Launch:
    return build_launch(
        loaded.job,
        folder=folder,
        attempt=attempt,
        injections=injections,
        is_resumed=attempt > 1,
        inherited=inherited_environment(),
        working_folder=Path.cwd(),
    )


def _print_plan(launch: Launch, wishes: Wishes) -> None:
    shown = {name: REDACTED if is_secret(name) else value for name, value in launch.environment.items()}
    launch = replace(launch, environment=shown)
    if wishes.is_json:
        print_document(
            {
                "run": launch.run,
                "directory": str(launch.folder),
                "ranks": launch.devices,
                "command": launch.command(),
                "environment": shown,
                "settings": launch.rank_settings,
            }
        )
    else:
        print(launch.describe())


def _attempt(launch: Launch, wishes: Wishes) -> int:
    """Run one attempt under the local agent, then report on the run."""
    say(f"run {launch.run}, attempt {launch.attempt}, in {launch.folder}")
    with open_view(launch, is_quiet_stdout=wishes.is_json) as observe:
        outcome = Agent(launch, observe).run()
    report = build_report(launch.folder, outcome)
    (launch.folder / REPORT_FILE).write_text(json_text(report) + "\n", encoding="utf-8")
    if wishes.is_json:
        print_document(report)
    else:
        print(report_text(report))
    if outcome.error:
        say(f"trimtab: {outcome.error}")
    return exit_code_of(outcome)


def exit_code_of(outcome: Outcome) -> ExitCode:
    """What the process says at the end of an attempt."""
    if outcome.state is RunState.DONE:
        return ExitCode.DONE
    if outcome.state is RunState.FAILED:
        return ExitCode.RUN_FAILED
    return ExitCode.INTERRUPTED if outcome.signal_number == signal.SIGINT else ExitCode.TERMINATED
