"""The faults of a run and what each cost: until it was known, until training went on, and in steps."""

from dataclasses import dataclass

from trimtab.ledger.attempts import attempts_of
from trimtab.ledger.events import EventKind, RunRecords
from trimtab.ledger.journal import Event
from trimtab.ledger.lost_work import Rollback, rollbacks_of
from trimtab.ledger.series import is_late, progress

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
    boots = [attempt.boot for attempt in attempts_of(records)]
    faults: list[_Fault] = []
    waiting: list[_Fault] = []
    committed = 0
    for attempt, _, told in _history(records):
        if isinstance(told, Rollback):
            to_step = min(committed, told.to_step)
            if waiting:
                waiting[-1].steps_lost += committed - to_step
            committed = to_step
        elif told.kind == EventKind.FAULT:
            faults.append(_Fault(event=told, boot=boots[attempt]))
            waiting.append(faults[-1])
        elif is_late(told):  # of a step from before the fault was dealt with
            committed = told.integer("step")
        else:
            committed = told.integer("step")
            for fault in waiting:
                if fault.boot == boots[attempt]:
                    fault.resumed_ns = told.t_ns
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


def _history(records: RunRecords) -> list[tuple[int, int, Event | Rollback]]:
    """Faults, rollbacks and commits with their attempt and time, in order; in this order at the same time."""
    history: list[tuple[int, int, Event | Rollback]] = [
        (index, fault.integer("t_declared_ns"), fault)
        for index, attempt in enumerate(attempts_of(records))
        for fault in attempt.events(EventKind.FAULT)
    ]
    history += [(rollback.attempt, rollback.t_ns, rollback) for rollback in rollbacks_of(records)]
    history += [
        (number - 1, event.t_ns, event)
        for number, event in progress(records)
        if event.kind == EventKind.COMMIT
    ]
    return sorted(history, key=lambda entry: entry[:2])
