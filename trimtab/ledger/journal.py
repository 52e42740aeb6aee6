"""The journal: one event a line, in strict JSON, readable after any kill.

A line is ``{"event": kind, "t_ns": monotonic nanoseconds, ...fields}``. Who writes it puts the whole line out
with one ``os.write`` on a descriptor opened with ``O_APPEND``, so that a kill can tear the last line only.

JSON has no NaN and no infinity: such a number is written as ``null``, and the field ``nonfinite`` says what
stood there, by dotted path: ``{"loss": null, "nonfinite": {"loss": "nan"}}``.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from trimtab.ledger.errors import JournalError

_RESERVED = frozenset({"event", "t_ns", "nonfinite"})
_LINE_START = b'{"event":'


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that happened."""

    kind: str
    """An ``EventKind``, or the word of a newer writer."""
    t_ns: int
    """Monotonic clock of the writer's machine, ns."""
    fields: Mapping[str, Any] = field(default_factory=dict)

    def integer(self, name: str) -> int:
        """The whole number in a field that this kind of event must have.

        Raises: JournalError if the field is missing or is something else.
        """
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise JournalError(
                f"event {self.kind!r} at t_ns {self.t_ns}: {name} is {value!r}, not a whole number"
            )
        return value

    def number(self, name: str) -> float | None:
        """The number in a field; None where there is none or where it was not finite."""
        value = self.fields.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def nonfinite(self) -> Mapping[str, str]:
        """What stood where the journal holds a null in place of a number: ``nan``, ``inf`` or ``-inf``."""
        names: Mapping[str, str] = self.fields.get("nonfinite", {})
        return names


@dataclass(frozen=True, kw_only=True, slots=True)
class Journal:
    """The events of one journal, and what could not be read of it."""

    events: tuple[Event, ...]
    num_problems: int
    """Lines that are no events though another line follows: a disk was full, or a hand was at work."""
    is_torn: bool
    """Whether the last line is incomplete: its writer was killed, or is writing now."""


def encode_event(kind: str, t_ns: int, /, **fields: object) -> bytes:
    r"""One line of a journal, its newline included.

    >>> encode_event("commit", 7, step=3, loss=float("nan"))
    b'{"event":"commit","t_ns":7,"step":3,"loss":null,"nonfinite":{"loss":"nan"}}\n'

    Args:
        kind: An ``EventKind``, whose docstring names the fields.
        t_ns: Monotonic clock, ns.
        fields: What JSON can hold; not ``event``, ``t_ns`` or ``nonfinite``, which are the format's own.
    """
    assert not _RESERVED & fields.keys(), f"reserved by the journal: {sorted(_RESERVED & fields.keys())}"
    line = {"event": kind, "t_ns": t_ns, **fields}
    try:
        text = _dumps(line)
    except ValueError:  # the rare case pays: looking for NaN first would double the cost of every event
        nonfinite: dict[str, str] = {}
        finite = _without_nonfinite(fields, "", nonfinite)
        text = _dumps({"event": kind, "t_ns": t_ns, **finite, "nonfinite": nonfinite})
    return text.encode() + b"\n"


def read_events(data: bytes | Iterable[bytes]) -> list[Event]:
    """The events of a journal in the order they were written; lines that cannot be read are left out.

    Args:
        data: The bytes of the journal, or its lines, such as a file open for reading bytes.
    """
    return list(read_journal(data).events)


def read_journal(data: bytes | Iterable[bytes]) -> Journal:
    """As ``read_events``, with what could not be read counted."""
    events: list[Event] = []
    num_problems = 0
    is_torn = False
    for line in BytesIO(data) if isinstance(data, bytes) else data:
        event = _decode(line)
        if event is None and line.strip():
            is_torn = not line.endswith(b"\n")
            num_problems += not is_torn
            event = _decode(line[max(0, line.rfind(_LINE_START)) :])  # a whole line may follow a torn one
        if event is not None:
            events.append(event)
    return Journal(events=tuple(events), num_problems=num_problems, is_torn=is_torn)


def _dumps(line: Mapping[str, object]) -> str:
    return json.dumps(line, allow_nan=False, separators=(",", ":"))


def _without_nonfinite(value: Any, path: str, found: dict[str, str]) -> Any:
    """``value`` with None for each number that JSON lacks; ``found`` gains its path and name."""
    if isinstance(value, float) and not math.isfinite(value):
        found[path] = str(float(value))
        return None
    prefix = f"{path}." if path else ""
    if isinstance(value, Mapping):
        return {key: _without_nonfinite(item, f"{prefix}{key}", found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nonfinite(item, f"{prefix}{index}", found) for index, item in enumerate(value)]
    return value


def _decode(line: bytes) -> Event | None:
    try:
        fields = json.loads(line, parse_constant=_refuse_constant)
    except ValueError:  # UnicodeDecodeError is one too
        return None
    if not isinstance(fields, dict):
        return None
    kind, t_ns = fields.pop("event", None), fields.pop("t_ns", None)
    if not isinstance(kind, str) or not isinstance(t_ns, int):
        return None
    return Event(kind=kind, t_ns=t_ns, fields=fields)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
