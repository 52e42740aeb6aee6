"""What a study says: lines while it goes on, a report and a document at its end, files that carry it further."""

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trimtab.app.output import json_text, printable
from trimtab.app.pages.tuning_html import tuning_page
from trimtab.app.tuning.findings import Gain, best_of, front_of
from trimtab.app.tuning.studies import TrialRow
from trimtab.app.tuning.trial_settings import (
    Choices,
    changed_settings,
    overrides_of,
    settings_of,
    to_leave_out,
    undoing,
)
from trimtab.policy.trials import TrialState
from trimtab.spec import LoadedJob
from trimtab.spec.tunings import TuningObjective
from trimtab.terms import format_seconds

PICTURE_FILE = "picture.html"
RESULT_FILE = "result.json"
BEST_FILE = "best.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyReport:
    """A study as it stands.

    Args:
        folder: Of the study.
        job: Path of the job file.
        loaded: The job as it is.
        choices: Between strategies and formulas.
        objectives: What trials are judged by.
        rows: All trials.
        refused: Why combinations could not be tried, each with how often.
        gain: Of the best one; None until it was confirmed, or if there is nothing to confirm.
        reason: Why the study ended; empty while it goes on.
    """

    folder: Path
    job: str
    loaded: LoadedJob
    choices: Choices
    objectives: tuple[TuningObjective, ...]
    rows: Sequence[TrialRow]
    refused: Mapping[str, int]
    gain: Gain | None = None
    reason: str = ""

    @property
    def best(self) -> TrialRow | None:
        """By the first objective; None if it is the job as it is, or nothing was measured."""
        found = best_of(self.rows, self.objectives[0])
        return found if found is not None and self.changes(found) else None

    def changes(self, row: TrialRow) -> dict[str, Any]:
        """What a trial sets that the job does not say already."""
        return changed_settings(self.loaded, settings_of(row.params, self.choices))

    def document(self) -> dict[str, Any]:
        """For programs."""
        best = self.best
        return {
            "study": self.folder.name,
            "directory": str(self.folder.resolve()),
            "job": self.job,
            "reason": self.reason,
            "objectives": [objective.value for objective in self.objectives],
            "trials": [self._trial(row) for row in self.rows],
            "refused": dict(self.refused),
            "front": [row.trial.number for row in front_of(self.rows, self.objectives)],
            "best": None if best is None else self._found(best),
            "gain": None if self.gain is None else _gain(self.gain),
            "spent": {
                "seconds": sum(row.trial.spent_s for row in self.rows),
                "usd": sum(row.trial.spent_usd for row in self.rows),
            },
            "picture": str((self.folder / PICTURE_FILE).resolve()),
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.folder.name}: {self.reason}" if self.reason else self.folder.name
        yield from self._counts()
        front = front_of(self.rows, self.objectives)
        if not front:
            yield "no trial could be measured; the reasons:"
            yield from (f"  {trial_line(row, self.objectives)}" for row in self.rows)
            return
        if len(self.objectives) > 1:
            yield f"no trial beats these in all of {', '.join(self.objectives)}:"
            yield from (f"  {trial_line(row, self.objectives)}" for row in front)
        yield from self._verdict()
        yield f"picture: {self.folder / PICTURE_FILE}"

    def write(self) -> None:
        """Leave the picture, and at the end the result and the job that carries it, in the study's folder."""
        write_whole(self.folder / PICTURE_FILE, tuning_page(self.document(), is_over=bool(self.reason)))
        if not self.reason:
            return
        write_whole(self.folder / RESULT_FILE, json_text(self.document()) + "\n")
        best = self.best
        if best is not None:
            write_whole(self.folder / BEST_FILE, self._best_job(best))

    def _counts(self) -> Iterator[str]:
        states = [row.trial.state for row in self.rows]
        told = [f"{states.count(state)} {state.value}" for state in TrialState if states.count(state)]
        seconds = sum(row.trial.spent_s for row in self.rows)
        usd = sum(row.trial.spent_usd for row in self.rows)
        price = f", ${usd:.4f}" if usd else ""
        yield f"{len(self.rows)} trials ({', '.join(told)}), {format_seconds(seconds)} of trials{price}"
        for reason, count in self.refused.items():
            yield f"  {count} not tried, refused before a start: {printable(reason).splitlines()[0]}"

    def _verdict(self) -> Iterator[str]:
        best = self.best
        if best is None:
            yield "the job as it is was the best; nothing to change"
            return
        yield f"best: {trial_line(best, self.objectives)}"
        gain = self.gain
        if gain is not None:
            yield f"  {gain_line(gain)}"
        advice = "" if gain is None or gain.is_real else ", if you want them nevertheless"
        yield f"  to have it{advice}:"
        yield from (f"    {word}" for word in set_words(self.changes(best)))
        yield f"  or trimtab run {self.folder / BEST_FILE}, which extends {self.job}"
        yield "  to undo it behind them:"
        yield from (f"    {word}" for word in set_words(undoing(self.loaded, self.changes(best))))
        if left := to_leave_out(self.loaded, self.changes(best)):
            yield f"    and leave out {', '.join(left)}"

    def _trial(self, row: TrialRow) -> dict[str, Any]:
        outcome = row.outcome
        return {
            "number": row.trial.number,
            "state": row.trial.state.value,
            "params": dict(row.params),
            "settings": self.changes(row),
            "values": dict(outcome.values) if outcome else {},
            "reason": outcome.reason if outcome else "",
            "attempts": row.trial.attempts,
            "seconds": row.trial.spent_s,
            "usd": row.trial.spent_usd,
            "folder": outcome.folder if outcome else "",
        }

    def _found(self, best: TrialRow) -> dict[str, Any]:
        changes = self.changes(best)
        assert best.outcome is not None, "it was measured"
        return {
            "number": best.trial.number,
            "values": dict(best.outcome.values),
            "set": overrides_of(changes),
            "undo": overrides_of(undoing(self.loaded, changes)),
            "leave_out": to_leave_out(self.loaded, changes),
            "file": str((self.folder / BEST_FILE).resolve()),
        }

    def _best_job(self, best: TrialRow) -> str:
        base = os.path.relpath(Path(self.job).resolve(), self.folder.resolve())
        values: dict[str, Any] = {"extends": base}
        for key, value in self.changes(best).items():
            *path, last = key.split(".")
            place = values
            for part in path:
                place = place.setdefault(part, {})
            place[last] = value
        head = [f"# {trial_line(best, self.objectives)}, of the study {self.folder.name}."]
        if self.gain is not None:
            head.append(f"# {gain_line(self.gain)}.")
        head.append("# To undo it, run the job that it extends.")
        return "\n".join(head) + "\n" + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def trial_line(row: TrialRow, objectives: Sequence[TuningObjective]) -> str:
    """A trial in one line."""
    outcome = row.outcome
    values = outcome.values if outcome else {}
    told = [
        f"{objective.value} {value_text(objective, values[objective.value])}"
        for objective in objectives
        if objective.value in values
    ]
    state = [] if row.trial.state is TrialState.DONE else [row.trial.state.value]
    reason = [outcome.reason.splitlines()[0]] if outcome and outcome.reason else []
    params = ", ".join(f"{name} {_param(value)}" for name, value in row.params.items())
    return printable(f"trial {row.trial.number}: {'; '.join((*told, *state, *reason))} ({params})")


def gain_line(gain: Gain) -> str:
    """What the pairs say."""
    ratios = gain.ratios
    said = f"{gain.middle:.3f} of the job's own {gain.objective.value} ({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} pairs)"
    return f"confirmed: {said}" if gain.is_real else f"not confirmed, the noise is as large: {said}"


def set_words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as words of a command line."""
    return [f"--set {shlex.quote(text)}" for text in overrides_of(settings)]


def value_text(objective: TuningObjective, value: float) -> str:
    """A value with as many digits as trials of this length have."""
    match objective:
        case TuningObjective.TOKENS_PER_S:
            return f"{value:,.0f}"
        case TuningObjective.PEAK_BYTES:
            return f"{value / 1e6:,.0f} MB"
        case _:
            return f"{value:.4f}"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that who reads it finds the old text or the new one, and never a part."""
    unfinished = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _gain(gain: Gain) -> dict[str, Any]:
    return {
        "objective": gain.objective.value,
        "pairs": [{"own": own, "best": best} for own, best in gain.pairs],
        "ratio": {"min": gain.ratios[0], "median": gain.middle, "max": gain.ratios[-1]},
        "is_confirmed": gain.is_real,
    }


def _param(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
