"""The faults of a run and what each cost: until it was known, until training went on, and in steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.ledger.attempts import Attempt, attempts_of
from trimtab.ledger.events import EventKind, RunRecords
from trimtab.ledger.journal import Event
from trimtab.ledger.series import progress

_NS_PER_S = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """One fault and what it cost."""

    step: int
    """The step in which it happened."""
    rank: int | None
    """None: it was no rank's, such as a loss that is not a number."""
    cause: str
    detect_s: float
    """From the fault to its declaration."""
    resumed_s: float | None
    """From the fault to the first commit after its declaration; None if there was none, or if the machine was
    started anew in between, so that nobody can tell."""
    steps_lost: int
    """Committed steps that were rolled back because of it."""


def recoveries_of(records: RunRecords) -> list[Recovery]:
    """Every fault of a run, oldest first.

    A rollback belongs to the last fault that no commit has followed yet; one that a user asked for belongs to
    none.

    Raises: JournalError if an event lacks what its kind must have.
    """
    attempts = attempts_of(records)
    faults: list[_Fault] = []
    waiting: list[_Fault] = []
    committed = 0
    for number, event in _history(records, attempts):
        if event.kind == EventKind.FAULT:
            faults.append(_Fault(event=event, boot=attempts[number - 1].boot))
            waiting.append(faults[-1])
        elif event.kind == EventKind.ROLLBACK:
            to_step = min(committed, event.integer("to_step"))
            if waiting:
                waiting[-1].steps_lost += committed - to_step
            committed = to_step
        else:
            committed = event.integer("step")
            for fault in waiting:
                if fault.boot == attempts[number - 1].boot:
                    fault.resumed_ns = event.t_ns
            waiting.clear()
    return [fault.recovery() for fault in faults]


@dataclass(kw_only=True, slots=True)
class _Fault:
    """A fault, while the story after it is read."""

    event: Event
    boot: str
    steps_lost: int = 0
    resumed_ns: int | None = None

    def recovery(self) -> Recovery:
        fault_ns = self.event.integer("t_fault_ns")
        return Recovery(
            step=self.event.integer("step"),
            rank=None if self.event.fields.get("rank") is None else self.event.integer("rank"),
            cause=str(self.event.fields.get("cause")),
            detect_s=(self.event.integer("t_declared_ns") - fault_ns) / _NS_PER_S,
            resumed_s=None if self.resumed_ns is None else (self.resumed_ns - fault_ns) / _NS_PER_S,
            steps_lost=self.steps_lost,
        )


def _history(records: RunRecords, attempts: Sequence[Attempt]) -> list[tuple[int, Event]]:
    """Faults, rollbacks and commits with their attempt, counted from 1, in order of time."""
    told = [
        (number, event)
        for number, attempt in enumerate(attempts, start=1)
        for event in attempt.journal
        if event.kind in (EventKind.FAULT, EventKind.ROLLBACK)
    ]
    told += [(number, event) for number, event in progress(records) if event.kind == EventKind.COMMIT]
    return sorted(told, key=lambda pair: (pair[0], pair[1].fields.get("t_declared_ns", pair[1].t_ns)))
