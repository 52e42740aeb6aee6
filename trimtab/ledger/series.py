"""Metrics over the steps of a run, whatever number of attempts it took."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from trimtab.ledger.attempts import attempts_of
from trimtab.ledger.events import EventKind, RunRecords
from trimtab.ledger.journal import Event


class Metric(StrEnum):
    """What the lead rank says about each step that it commits, or evaluates."""

    LOSS = "loss"
    GRAD_NORM = "grad_norm"
    LR = "lr"
    TOKENS = "tokens"
    TARGETS = "targets"
    EVAL_LOSS = "eval_loss"


_SOURCES = {metric: (EventKind.COMMIT, metric.value) for metric in Metric}
_SOURCES[Metric.EVAL_LOSS] = (EventKind.EVALUATION, "loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One value of a metric."""

    step: int
    attempt: int
    """Counted from 1."""
    t_ns: int
    value: float | None
    """None: a gap."""
    nonfinite: str | None
    """What stood in the gap: ``nan``, ``inf`` or ``-inf``; None if there is no gap, or nothing stood there."""


def all_points(records: RunRecords, metric: Metric) -> list[Point]:
    """Every value that any attempt has logged, in the order of attempts, then of time."""
    kind, field = _SOURCES[metric]
    return [_point(attempt, event, field) for attempt, event in progress(records) if event.kind == kind]


def default_series(records: RunRecords, metric: Metric) -> list[Point]:
    """One value per step, steps strictly increasing: a step that is done again supersedes all from it on.

    An attempt that commits nothing changes nothing.
    """
    kind, field = _SOURCES[metric]
    series: list[Point] = []
    for attempt, event in progress(records):
        if event.kind != kind and event.kind != EventKind.COMMIT:
            continue
        # An evaluation comes after the commit of its step, so a commit supersedes it and never the reverse.
        while series and series[-1].step >= event.integer("step"):
            series.pop()
        if event.kind == kind:
            series.append(_point(attempt, event, field))
    return series


def progress(
    records: RunRecords, kinds: Collection[str] = (EventKind.COMMIT, EventKind.EVALUATION)
) -> Iterator[tuple[int, Event]]:
    """Events of all ranks, of some kinds, with their attempt, counted from 1, in order of time.

    Without kinds, commits and evaluations, which only lead ranks tell. What was told again late is left out.
    """
    attempts = attempts_of(records)
    attempt_of = {
        process.incarnation: number
        for number, attempt in enumerate(attempts, start=1)
        for process in attempt.processes
    }
    found = [
        (attempt_of.get(incarnation, len(attempts)), event)
        for incarnation, journal in records.ranks.items()
        for event in journal
        if event.kind in kinds
    ]
    last: tuple[int, int] | None = None
    for attempt, event in sorted(found, key=lambda pair: (pair[0], pair[1].t_ns)):
        if event.kind == EventKind.COMMIT:
            before, last = last, (attempt, event.integer("step"))
            if is_late(event) and before == last:
                continue
        yield attempt, event


def is_late(commit: Event) -> bool:
    """Whether a commit was told by the lead of a later epoch."""
    return bool(commit.fields.get("is_late"))


def _point(attempt: int, event: Event, field: str) -> Point:
    return Point(
        step=event.integer("step"),
        attempt=attempt,
        t_ns=event.t_ns,
        value=event.number(field),
        nonfinite=event.nonfinite.get(field),
    )
