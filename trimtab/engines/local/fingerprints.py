"""What a run began with, `fingerprint.json` in its folder: who differs may not join an exact run."""

import json
from collections.abc import Mapping
from pathlib import Path

from trimtab.policy import events, wire
from trimtab.policy.coordinator import Coordinator

_FILE = "fingerprint.json"


def read_fingerprint(folder: Path) -> Mapping[str, str] | None:
    """The fingerprint that a run began with; None before its first rank has told."""
    path = folder / _FILE
    if not path.exists():
        return None
    begun: Mapping[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return begun


def judge_hello(event: events.Event, coordinator: Coordinator, folder: Path) -> events.Event:
    """The event itself; for the Hello of a rank of another fingerprint, the end of the run.

    The first Hello of a run says what the fingerprint is.
    """
    if not isinstance(event, events.Received) or not isinstance(event.message, wire.Hello):
        return event
    found = event.message.fingerprint
    mismatch = coordinator.mismatch(found)
    if mismatch:
        return events.Abandoned(error=f"rank {event.rank} may not join an exact run: {mismatch}")
    if not (folder / _FILE).exists():
        (folder / _FILE).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return event
