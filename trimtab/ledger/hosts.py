"""Times of several hosts on one clock: each host's monotonic clock began when that machine did."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trimtab.ledger.events import EventKind, Incarnation
from trimtab.ledger.journal import Event

_TIMES = ("start_ns", "end_ns")
"""Fields of a rank's events that are moments, and not lengths."""


def clock_offsets_ns(agents: Iterable[Sequence[Event]]) -> dict[Incarnation, int]:
    """What must be added to the times of each process that did not read the coordinator's clock.

    Args:
        agents: The agent's journal of each attempt.
    """
    found: dict[Incarnation, int] = {}
    for journal in agents:
        offsets: dict[object, int] = {}
        for event in journal:
            if event.kind == EventKind.HOST:
                offsets |= dict.fromkeys(event.fields.get("devices", ()), event.integer("offset_ns"))
            elif event.kind == EventKind.SPAWNED and (offset := offsets.get(event.fields.get("device"), 0)):
                found[Incarnation(event.integer("rank"), event.integer("incarnation"))] = offset
    return found


def moved(event: Event, offset_ns: int) -> Event:
    """A rank's event with its moments on the coordinator's clock."""
    if not offset_ns:
        return event
    times = {name: event.fields[name] + offset_ns for name in _TIMES if name in event.fields}
    return replace(event, t_ns=event.t_ns + offset_ns, fields={**event.fields, **times})
