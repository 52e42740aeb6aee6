"""What the agent's journals say: the attempts of a run, their processes, and when each device was paid for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.ledger.clocks import ClockReading
from trimtab.ledger.events import EventKind, Incarnation, RunRecords
from trimtab.ledger.journal import Event


@dataclass(kw_only=True, slots=True)
class Process:
    """What is known of one process of a rank."""

    incarnation: Incarnation
    device: str
    begin_ns: int
    """Its spawn, or its first clock if that is earlier by a hair."""
    reading: ClockReading | None
    """None: it never started its clocks."""
    exited_ns: int | None
    """When it was reaped; None: not in the journal."""
    exit_code: int | None
    """None: not in the journal, or a signal ended it."""
    fault_ns: int | None = None
    declared_ns: int | None = None
    """When its fault was declared; None: it had none."""

    @property
    def last_ns(self) -> int:
        """The last moment at which it is known to have lived."""
        return self.begin_ns if self.reading is None else self.reading.last_ns

    def __str__(self) -> str:
        """For messages: device, rank and incarnation."""
        return f"device {self.device!r}: rank {self.incarnation.rank}, incarnation {self.incarnation.number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PaidSpan:
    """A span of time for which a device is paid."""

    device: str
    start_ns: int
    released_ns: int | None
    """None: the agent's journal ends before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One journal of the agent, read."""

    run: Mapping[str, Any]
    """The fields of its ``run`` event."""
    journal: Sequence[Event]
    processes: Sequence[Process]
    paid: Sequence[PaidSpan]

    @property
    def boot(self) -> str:
        """Times of two attempts can be compared only if this is the same."""
        return str(self.run.get("boot", ""))

    @property
    def last_event_ns(self) -> int:
        """The time of the agent's last event."""
        return max((event.t_ns for event in self.journal), default=0)

    @property
    def work_ended_ns(self) -> int:
        """When the last process went; the last event if the journal does not tell."""
        ends = [process.exited_ns for process in self.processes if process.exited_ns is not None]
        return max(ends, default=0) if len(ends) == len(self.processes) else self.last_event_ns

    def events(self, kind: EventKind) -> list[Event]:
        """The agent's events of one kind, oldest first."""
        return of_kind(self.journal, kind)

    def number_for(self, field: str, device: str) -> float | None:
        """A field of the ``run`` event that holds one number for all devices, or a number per device."""
        value = self.run.get(field)
        if isinstance(value, Mapping):
            value = value.get(device)
        return float(value) if isinstance(value, int | float) else None


def attempts_of(records: RunRecords) -> list[Attempt]:
    """The attempts of a run, oldest first.

    Raises: JournalError if an event lacks what its kind must have.
    """
    return [_attempt(journal, records.clocks) for journal in records.agents]


def of_kind(journal: Iterable[Event], kind: EventKind) -> list[Event]:
    """The events of one kind, in their order."""
    return [event for event in journal if event.kind == kind]


def _attempt(journal: Sequence[Event], clocks: Mapping[Incarnation, ClockReading]) -> Attempt:
    runs = of_kind(journal, EventKind.RUN)
    return Attempt(
        run=runs[0].fields if runs else {},
        journal=journal,
        processes=_processes(journal, clocks),
        paid=_paid_spans(journal),
    )


def _processes(journal: Sequence[Event], clocks: Mapping[Incarnation, ClockReading]) -> list[Process]:
    exits = {_incarnation(event): event for event in of_kind(journal, EventKind.EXITED)}
    processes = []
    for spawn in of_kind(journal, EventKind.SPAWNED):
        incarnation = _incarnation(spawn)
        reading, exit_event = clocks.get(incarnation), exits.get(incarnation)
        processes.append(
            Process(
                incarnation=incarnation,
                device=str(spawn.fields.get("device")),
                begin_ns=spawn.t_ns if reading is None else min(spawn.t_ns, reading.first_ns),
                reading=reading,
                exited_ns=None if exit_event is None else exit_event.t_ns,
                exit_code=None if exit_event is None else _exit_code(exit_event),
            )
        )
    for fault in of_kind(journal, EventKind.FAULT):
        _mark_victim(processes, fault)
    return processes


def _exit_code(exit_event: Event) -> int | None:
    return None if exit_event.fields.get("signal") else exit_event.fields.get("code")


def _incarnation(event: Event) -> Incarnation:
    return Incarnation(event.integer("rank"), event.integer("incarnation"))


def _mark_victim(processes: Sequence[Process], fault: Event) -> None:
    """Note the fault at the process that its rank had when it was declared; the first fault counts."""
    declared_ns = fault.integer("t_declared_ns")
    victims = [
        process
        for process in processes
        if process.incarnation.rank == fault.fields.get("rank") and process.begin_ns <= declared_ns
    ]
    if victims and victims[-1].declared_ns is None:
        victims[-1].fault_ns, victims[-1].declared_ns = fault.integer("t_fault_ns"), declared_ns


def _paid_spans(journal: Sequence[Event]) -> list[PaidSpan]:
    spans: list[PaidSpan] = []
    opened: dict[str, int] = {}
    for event in journal:
        device = str(event.fields.get("device"))
        if event.kind == EventKind.ALLOCATED:
            opened.setdefault(device, event.t_ns)
        elif event.kind == EventKind.RELEASED and device in opened:
            spans.append(PaidSpan(device=device, start_ns=opened.pop(device), released_ns=event.t_ns))
    spans += [PaidSpan(device=device, start_ns=start, released_ns=None) for device, start in opened.items()]
    return sorted(spans, key=lambda span: span.start_ns)
