"""Which process had each paid device when: the view of the agent, from outside.

A hold runs from a device's allocation to its release. Inside it, every nanosecond belongs either to the
clocks of one process or to a stretch between processes, whose class follows from what lies around it:

    allocation .. first spawn            queue_idle
    spawn .. the process's first clock   restart
    first clock .. its end               the process's own clocks
    fault .. declared                    detect       (the process was dead or stopped, nobody knew)
    end .. next spawn                    degraded if the others re-formed without it, else restart
    end .. release                       degraded likewise; restart after a fault that ended the run;
                                         queue_idle if only the others had work left; after the attempt's last
                                         process has gone, restart (teardown)

A crashed agent releases nothing: its holds end at its last event, or at the last switch of a clock on the
device if that is later. A device belongs to the newest attempt that holds it, so that no time counts twice.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.ledger.attempts import Attempt, PaidSpan, Process, attempts_of
from trimtab.ledger.clocks import ClockReading
from trimtab.ledger.errors import AccountError
from trimtab.ledger.events import EventKind, Incarnation, RunRecords
from trimtab.terms import Clock, ExitCode, LedgerClass

_CLEAN_CODES = frozenset({ExitCode.DONE, ExitCode.INTERRUPTED, ExitCode.TERMINATED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """One process on its device, while its clocks ran."""

    incarnation: Incarnation
    totals: Mapping[Clock, int]
    """Every clock's ns, from the first clock to the end."""
    ended_ns: int
    is_clean: bool
    """Whether the process ended by itself with its state saved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """One device in one attempt, from allocation to release: ``outside`` and ``lives`` fill it exactly."""

    attempt: int
    """Position of the attempt in the records, from 0."""
    device: str
    start_ns: int
    end_ns: int
    price_usd_per_hour: float | None
    peak_flops_per_s: float | None
    outside: Mapping[LedgerClass, int]
    """ns outside of any process's clocks."""
    lives: Sequence[Life]


def holds_of(records: RunRecords) -> list[Hold]:
    """Every hold of every device, in the order of attempts, then of allocation.

    Raises:
        AccountError: a process ran outside the time for which its device was paid, or beside another.
        JournalError: an event lacks what its kind must have.
    """
    attempts = attempts_of(records)
    holds = []
    for index, attempt in enumerate(attempts):
        tenants = _tenants(attempt)
        for paid in attempt.paid:
            taken_ns = _taken_over_ns(paid.device, attempt, attempts[index + 1 :])
            holds.append(_hold(index, attempt, paid, tenants[paid], taken_ns=taken_ns))
    return holds


def _tenants(attempt: Attempt) -> dict[PaidSpan, list[Process]]:
    """The processes that were started in each span, oldest first."""
    tenants: dict[PaidSpan, list[Process]] = {span: [] for span in attempt.paid}
    for process in sorted(attempt.processes, key=lambda process: process.begin_ns):
        spans = [
            span
            for span in attempt.paid
            if span.device == process.device and span.start_ns <= process.begin_ns
        ]
        if not spans:
            raise AccountError(
                f"{process}, began at {process.begin_ns} ns, before its device was allocated; compare its clock "
                f"file with the agent's journal"
            )
        tenants[spans[-1]].append(process)
    return tenants


def _taken_over_ns(device: str, attempt: Attempt, later: Sequence[Attempt]) -> int | None:
    """When a later attempt allocated the device; None if none did, or if the clock began anew in between."""
    starts = [
        span.start_ns
        for other in later
        if other.boot == attempt.boot
        for span in other.paid
        if span.device == device
    ]
    return min(starts, default=None)


def _hold(
    index: int, attempt: Attempt, paid: PaidSpan, tenants: Sequence[Process], *, taken_ns: int | None
) -> Hold:
    end_ns = _end_of_hold_ns(attempt, paid, tenants, taken_ns=taken_ns)
    outside: Counter[LedgerClass] = Counter()
    lives = []
    before, free_ns = None, paid.start_ns
    limits_ns = [*(process.begin_ns for process in tenants), end_ns][1:]
    for process, limit_ns in zip(tenants, limits_ns, strict=True):
        _check_order(process, free_ns=free_ns, limit_ns=limit_ns)
        outside.update(_gap(attempt, before, free_ns, process.begin_ns, is_respawned=True))
        end = _end_of(process, limit_ns)
        outside[LedgerClass.DETECT] += end.noticed_ns - end.ended_ns
        if process.reading is None:
            outside[LedgerClass.RESTART] += end.ended_ns - process.begin_ns
        else:
            outside[LedgerClass.RESTART] += min(process.reading.first_ns, end.ended_ns) - process.begin_ns
            lives.append(_life(process, process.reading, end.ended_ns))
        before, free_ns = process, end.noticed_ns
    outside.update(_gap(attempt, before, free_ns, end_ns, is_respawned=False))
    return Hold(
        attempt=index,
        device=paid.device,
        start_ns=paid.start_ns,
        end_ns=end_ns,
        price_usd_per_hour=attempt.number_for("price_usd_per_hour", paid.device),
        peak_flops_per_s=attempt.number_for("peak_flops_per_s", paid.device),
        outside=outside,
        lives=lives,
    )


def _end_of_hold_ns(
    attempt: Attempt, paid: PaidSpan, tenants: Sequence[Process], *, taken_ns: int | None
) -> int:
    end_ns = paid.released_ns
    if end_ns is None:
        end_ns = max(paid.start_ns, attempt.last_event_ns, *(process.last_ns for process in tenants))
    return end_ns if taken_ns is None else max(paid.start_ns, min(end_ns, taken_ns))


def _check_order(process: Process, *, free_ns: int, limit_ns: int) -> None:
    """Refuse what cannot be: a process before its device is free, or reaped after the next one began."""
    if free_ns <= process.begin_ns <= limit_ns and (process.exited_ns or 0) <= limit_ns:
        return
    raise AccountError(
        f"{process}, ran from {process.begin_ns} to {process.exited_ns or process.last_ns} ns, but the device was "
        f"free for it from {free_ns} to {limit_ns} ns only; compare its clock file with the agent's journal"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _End:
    """When a process stopped working, and when that was known (the same moment unless it failed)."""

    ended_ns: int
    noticed_ns: int


def _end_of(process: Process, limit_ns: int) -> _End:
    reaped_ns = limit_ns if process.exited_ns is None else process.exited_ns
    if process.exited_ns is not None and process.last_ns > process.exited_ns:
        raise AccountError(
            f"{process}, switched its clock at {process.last_ns} ns but was reaped at {process.exited_ns} ns; "
            f"agent and rank must read the same monotonic clock"
        )
    if process.fault_ns is None or process.declared_ns is None:
        return _End(ended_ns=reaped_ns, noticed_ns=reaped_ns)
    # A heartbeat can be older than the last switch of a clock, and the switch happened.
    ended_ns = min(max(process.fault_ns, process.last_ns), reaped_ns)
    return _End(ended_ns=ended_ns, noticed_ns=max(ended_ns, min(process.declared_ns, limit_ns)))


def _life(process: Process, reading: ClockReading, ended_ns: int) -> Life:
    totals = reading.totals(until_ns=ended_ns)
    if process.exited_ns is None:
        _cut(totals, excess_ns=max(0, reading.last_ns - ended_ns), first=reading.running)
    return Life(
        incarnation=process.incarnation,
        totals=totals,
        ended_ns=ended_ns,
        is_clean=process.declared_ns is None and process.exit_code in _CLEAN_CODES,
    )


def _cut(totals: dict[Clock, int], *, excess_ns: int, first: Clock) -> None:
    """Take time off that belongs to who took the device over: the process was orphaned and worked on.

    Which clock ran in that time is not known; the one that ran last is charged first.
    """
    for clock in (first, *totals):
        taken_ns = min(excess_ns, totals[clock])
        totals[clock] -= taken_ns
        excess_ns -= taken_ns


def _gap(
    attempt: Attempt, before: Process | None, start_ns: int, end_ns: int, *, is_respawned: bool
) -> Counter[LedgerClass]:
    """The classes of a stretch without a process, ``before`` being the process that had the device last."""
    if before is None:
        return Counter({LedgerClass.QUEUE_IDLE: end_ns - start_ns})
    is_fault = before.declared_ns is not None
    if is_fault and any(start_ns < formed.t_ns <= end_ns for formed in attempt.events(EventKind.FORMED)):
        waiting = LedgerClass.DEGRADED
    elif is_fault or is_respawned:
        waiting = LedgerClass.RESTART
    else:
        waiting = LedgerClass.QUEUE_IDLE
    work_ended_ns = end_ns if is_respawned else min(max(start_ns, attempt.work_ended_ns), end_ns)
    gap = Counter({waiting: work_ended_ns - start_ns})
    gap[LedgerClass.RESTART] += end_ns - work_ended_ns
    return gap
