"""What became of a run, read from its folder: the end of ``run``, and the verbs ``report`` and ``compare``."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from trimtab.app.output import json_text, print_document
from trimtab.app.run_folders import REPORT_FILE, RESOLVED_FILE, find_run
from trimtab.app.run_records import read_records
from trimtab.app.stored_checkpoints import folder_storage
from trimtab.ledger import (
    RunReport,
    compare,
    render_comparison,
    render_report,
    run_report,
)
from trimtab.terms import ExitCode, RunState

_UNWATCHED = "whoever ran it ended without a word: killed, or the machine went down"


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderReport:
    """The report of a run, with what only the command line shows beside it.

    Args:
        report: The ledger's.
        unigram_entropy: Loss of a model that knows token frequencies only, nats per token; None if not known.
    """

    report: RunReport
    unigram_entropy: float | None

    def document(self) -> dict[str, Any]:
        """What ``run --json`` and ``report --json`` print."""
        return self.report.document() | {"unigram_entropy": self.unigram_entropy}

    def text(self) -> str:
        """For people, as wide as the terminal."""
        text = render_report(self.report, width=shutil.get_terminal_size().columns).rstrip("\n")
        eval_loss = self.report.eval_loss
        if eval_loss is None or self.unigram_entropy is None:
            return text
        return (
            f"{text}\n\nheld-out loss {eval_loss:.4f} nats a token; "
            f"token frequencies alone give {self.unigram_entropy:.4f}"
        )


UnixClock = Callable[[], int]
"""The wall clock, in nanoseconds since 1970."""


def folder_report(
    folder: Path, results: Mapping[str, Any] | None = None, *, clock: UnixClock = time.time_ns
) -> FolderReport:
    """The report of a run as its folder has it now.

    Args:
        folder: Of the run.
        results: What the ranks said at their end, if the caller was there; else the report that was written then.
        clock: Read once. Storage is paid until then; device time ends with the journals, whatever the clock says.
    """
    records = read_records(folder)
    storage = folder_storage(folder, records, now_unix_ns=clock())
    report = run_report(records, directory=str(folder.resolve()), storage=storage)
    if results is None:
        results = _saved_results(folder, num_steps=report.steps)
    if report.state is RunState.RUNNING and records.has_ended:
        report = _ended_unwatched(report, {} if records.agents else results)
    return FolderReport(
        report=replace(
            report, run=folder.name, weights_sha256=report.weights_sha256 or results.get("weights_sha256")
        ),
        unigram_entropy=results.get("unigram_entropy"),
    )


def write_report(folder: Path, report: FolderReport) -> None:
    """Leave the report in the run's folder, for whoever reads it without Trimtab."""
    (folder / REPORT_FILE).write_text(json_text(report.document()) + "\n", encoding="utf-8")


def print_report(report: FolderReport, *, is_json: bool) -> None:
    """Print a report, as text or as a document."""
    if is_json:
        print_document(report.document())
    else:
        print(report.text())


def report_run(text: str, *, is_json: bool, clock: UnixClock = time.time_ns) -> int:
    """The verb ``report``: print the ledger of a run; returns the exit code."""
    print_report(folder_report(find_run(text), clock=clock), is_json=is_json)
    return ExitCode.DONE


def compare_runs(first_text: str, second_text: str, *, is_json: bool) -> int:
    """The verb ``compare``: print what differs between two runs; returns the exit code."""
    first, second = find_run(first_text), find_run(second_text)
    comparison = compare(
        folder_report(first).report,
        folder_report(second).report,
        first_settings=_settings(first),
        second_settings=_settings(second),
    )
    if is_json:
        print_document(comparison.document())
    else:
        print(render_comparison(comparison, width=shutil.get_terminal_size().columns).rstrip("\n"))
    return ExitCode.DONE


def _saved_results(folder: Path, *, num_steps: int) -> Mapping[str, Any]:
    """What the run's own report holds of its ranks' results, unless steps were committed after it was written."""
    try:
        saved = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return saved if isinstance(saved, dict) and saved.get("steps") == num_steps else {}


def _ended_unwatched(report: RunReport, results: Mapping[str, Any]) -> RunReport:
    """A run whose end no agent has written down: another launcher started it and its ranks tell, or it was killed."""
    if "state" in results:
        return replace(report, state=RunState(results["state"]))
    return replace(report, state=RunState.FAILED, error=_UNWATCHED)


def _settings(folder: Path) -> Mapping[str, Any]:
    """The settings of a run, from the resolved file that Trimtab itself wrote."""
    settings: Mapping[str, Any] = yaml.safe_load((folder / RESOLVED_FILE).read_text(encoding="utf-8"))
    return settings
