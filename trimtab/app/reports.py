"""What became of a run, read from its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.engines.local.agent import Outcome


def build_report(folder: Path, outcome: Outcome) -> dict[str, Any]:
    """The report of a run after an attempt."""
    return {
        "run": folder.name,
        "directory": str(folder),
        "state": outcome.state.value,
        **outcome.results,
        "error": outcome.error,
    }


def report_text(report: Mapping[str, Any]) -> str:
    """The report for people."""
    return "\n".join(f"{key}: {value}" for key, value in report.items() if value is not None)
