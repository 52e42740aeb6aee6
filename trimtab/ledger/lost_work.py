"""Which time was spent in vain: rolled back, or done again after an attempt at a step was given up."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trimtab.ledger.attempts import Attempt, attempts_of
from trimtab.ledger.events import EventKind, Lap, RunRecords
from trimtab.ledger.series import progress
from trimtab.ledger.timelines import Life
from trimtab.terms import RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollback:
    """All work after step ``to_step`` that was done before this moment is lost."""

    attempt: int
    """Position of the attempt in the records, from 0."""
    t_ns: int
    to_step: int

    def follows(self, attempt: int, t_ns: int) -> bool:
        """Whether a moment of an attempt lies before; times of different attempts need not be comparable."""
        return attempt < self.attempt or (attempt == self.attempt and t_ns <= self.t_ns)


def rollbacks_of(records: RunRecords) -> list[Rollback]:
    """Every rollback of a run, in order: those that were said, those that resuming from a checkpoint implies, and those
    that must come.

    An attempt whose first commit is step n has begun with the state of step n - 1. Until a later attempt tells, one that
    failed or was cut off is lost after the newest checkpoint that was durable by its end: nothing else can be gone on from.
    """
    first_steps: dict[int, int] = {}
    for number, event in progress(records):
        if event.kind == EventKind.COMMIT:
            first_steps.setdefault(number - 1, event.integer("step"))
    rollbacks = []
    attempts = attempts_of(records)
    durable = _durable_steps(records, attempts)
    told = first_steps.keys() | {
        i for i, attempt in enumerate(attempts) if attempt.events(EventKind.ROLLBACK)
    }
    for index, attempt in enumerate(attempts):
        if index in first_steps:
            start_ns = attempt.journal[0].t_ns
            rollbacks.append(Rollback(attempt=index, t_ns=start_ns, to_step=first_steps[index] - 1))
        rollbacks += [
            Rollback(attempt=index, t_ns=event.t_ns, to_step=event.integer("to_step"))
            for event in attempt.events(EventKind.ROLLBACK)
        ]
        later = range(index + 1, len(attempts))
        is_over = records.has_ended or bool(later)
        if not any(place in told for place in later) and _has_failed(attempt, is_over=is_over):
            rollbacks.append(Rollback(attempt=index, t_ns=_END_OF_TIME_NS, to_step=durable[index]))
    return rollbacks


_END_OF_TIME_NS = 2**63 - 1
"""After everything that an attempt did, whichever clock it was told by."""


def _has_failed(attempt: Attempt, *, is_over: bool) -> bool:
    """Whether an attempt ended without saving its state: it says so, or it is over and has said nothing."""
    endings = attempt.events(EventKind.FINISHED)
    return endings[-1].fields.get("state") == RunState.FAILED if endings else is_over


def _durable_steps(records: RunRecords, attempts: Sequence[Attempt]) -> list[int]:
    """The newest checkpoint at the end of each attempt, by its step; 0, the initial state, where there is none."""
    told = [
        (number - 1, event) for number, event in progress(records, (EventKind.CHECKPOINT, EventKind.PRUNED))
    ]
    told += [
        (index, event)
        for index, attempt in enumerate(attempts)
        for event in attempt.events(EventKind.ROLLBACK)
    ]
    told.sort(key=lambda pair: (pair[0], pair[1].t_ns))
    saved: set[int] = set()
    newest = [0] * len(attempts)
    for index, _ in enumerate(attempts):
        for _, event in (pair for pair in told if pair[0] == index):
            if event.kind == EventKind.ROLLBACK:
                saved = {step for step in saved if step <= event.integer("to_step")}
            elif event.kind == EventKind.PRUNED:
                saved.discard(event.integer("step"))
            elif event.fields.get("state") == "saved":
                saved.add(event.integer("step"))
        newest[index] = max(saved, default=0)
    return newest


class Part(NamedTuple):
    """``lost`` parts of ``whole``."""

    lost: int
    whole: int


_NOTHING, _ALL = Part(0, 1), Part(1, 1)


class LostWork:
    """Tells for one attempt what of its work was lost.

    Args:
        attempt: Its position in the records, from 0.
        laps: Of all its processes, in any order.
        rollbacks: Of the whole run.
    """

    def __init__(self, attempt: int, laps: Iterable[Lap], rollbacks: Sequence[Rollback]) -> None:
        self._attempt = attempt
        self._rollbacks = rollbacks
        self._last_ns: dict[tuple[int, int | None], int] = {}
        """When a share of a step was computed last; under None, when the step was tried last."""
        for lap in laps:
            for share in (None, *lap.shares):
                last_ns = self._last_ns.get((lap.step, share), lap.end_ns)
                self._last_ns[lap.step, share] = max(lap.end_ns, last_ns)

    def part_of(self, lap: Lap) -> Part:
        """How much of a lap was lost.

        All of it if it was rolled back. Of an attempt that was given up, the shares that somebody computed again:
        none where gradients are kept or another rank had committed already, all where the step is redone.
        """
        if any(
            lap.step > rollback.to_step and rollback.follows(self._attempt, lap.end_ns)
            for rollback in self._rollbacks
        ):
            return _ALL
        if not lap.is_aborted:
            return _NOTHING
        shares = lap.shares or (None,)
        return Part(sum(self._last_ns[lap.step, share] > lap.end_ns for share in shares), len(shares))

    def part_of_last_step(self, life: Life, laps: Sequence[Lap]) -> Part:
        """How much of the time after a process's last lap went into a step that was rolled back: all or nothing."""
        last_step = laps[-1].step if laps else None
        is_lost = not life.is_clean and any(
            (last_step is None or last_step >= rollback.to_step)
            and rollback.follows(self._attempt, life.ended_ns)
            for rollback in self._rollbacks
        )
        return _ALL if is_lost else _NOTHING
