"""``trimtab.run``: a run asked for from Python."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from trimtab.app.attempts import begin_run, make_attempt, refuse_what_cannot_start
from trimtab.app.deciding import read_decided_job, read_decided_text
from trimtab.app.errors import FailedRunError
from trimtab.app.job_reading import say_warnings
from trimtab.app.live_view import open_view
from trimtab.engines import Observer, Outcome
from trimtab.engines.launch import Launch
from trimtab.spec import LoadedJob
from trimtab.terms import InputError, RunState

MAPPING_SOURCE = "job"
"""What errors call a job that is a mapping."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What became of a run: the fields of ``run --json``.

    Args:
        run: Its unique name, by which every verb finds it.
        directory: Its folder.
        state: ``done``, or ``stopped`` by a signal with the state saved.
        loss, eval_loss, unigram_entropy: In nats per token, or per whatever a loop of one's own counts.
        weights_sha256: Over the logical tensors; None if the run has no weights of ours, as a plain script.
        recoveries: One mapping for each loss: step, rank, cause, detect_s, resumed_s, steps_lost.
        ledger: allocated_ns, classes (ns by class), unattributed_fraction.
        storage: What its checkpoints take up, and cost, beside the devices; None where nobody has looked.
    """

    run: str
    directory: str
    state: RunState
    steps: int
    loss: float | None
    eval_loss: float | None
    tokens: int
    tokens_per_s: float | None
    weights_sha256: str | None
    recoveries: Sequence[Mapping[str, Any]]
    ledger: Mapping[str, Any]
    cost_usd: float | None
    error: str | None
    storage: Mapping[str, Any] | None
    unigram_entropy: float | None

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> "RunResult":
        """The result that a document of ``run --json`` states."""
        return cls(**{**document, "state": RunState(document["state"])})


def run(
    job: str | os.PathLike[str] | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    inject: Sequence[str] = (),
    is_quiet: bool = True,
) -> RunResult:
    """Train what a job says, in a new run, and wait for its end. Call it on the main thread.

    A signal stops the run as it stops ``trimtab run``: the first one saves the state.

    Args:
        job: A job file's path, or its keys as a mapping; paths in it are relative to the working folder.
        overrides: What would stand after each ``--set``.
        inject: What would stand after each ``--inject``.
        is_quiet: False shows on standard error what ``trimtab run`` shows.

    Raises: What ends the command with exit code 2 or 3: InputError (JobFileError, StrategyError and others) and
        InfeasibleError, before anything is started; FailedRunError, a RunError, if the run fails.
    """
    loaded, job_file = _read(job, overrides)
    if not is_quiet:
        say_warnings(loaded)
    refuse_what_cannot_start(loaded)
    folder, injections = begin_run(loaded, job_file=job_file, injections=inject)

    def view(launch: Launch) -> AbstractContextManager[Observer]:
        if is_quiet:
            return nullcontext(_look_away)
        return open_view(launch, num_steps=loaded.job.train.steps, is_stdout_free=False)

    outcome, report = make_attempt(loaded, folder, injections, view)
    _raise_if_failed(outcome, directory=report.report.directory)
    return RunResult.of_document(report.document())


def _read(
    job: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str]
) -> tuple[LoadedJob, str | None]:
    if not isinstance(job, Mapping):
        path = os.fspath(job)
        return read_decided_job(path, overrides), path
    try:
        text = json.dumps(job, indent=2, ensure_ascii=False)  # JSON is YAML 1.2
    except (TypeError, ValueError) as error:
        raise InputError(f"the job is a mapping that JSON cannot hold: {error}") from error
    return read_decided_text(text, source=MAPPING_SOURCE, overrides=overrides), None


def _look_away(kind: str, t_ns: int, fields: Mapping[str, Any]) -> None:
    """An observer that shows nothing."""


def _raise_if_failed(outcome: Outcome, *, directory: str) -> None:
    if outcome.state is RunState.FAILED:
        message = f"{outcome.error}\n  The run is in {directory}"
        raise InputError(message) if outcome.is_input_error else FailedRunError(message)
