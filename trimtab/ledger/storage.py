"""What is paid beside devices: the checkpoints of a run, each from the moment it was durable until it was gone.

Storage is no class of device time: it goes on while no device is held. So it is told by the wall clock, which the events
``checkpoint`` and ``pruned`` hold, and stands in a line of its own.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import fsum
from typing import Any

from trimtab.ledger.events import EventKind, RunRecords
from trimtab.ledger.journal import Event
from trimtab.ledger.series import progress

STORAGE_PRICE_KEY = "orchestration.storage_usd_per_gb_month"
"""Where a user says what storage costs."""

HOURS_PER_MONTH = 730
"""A twelfth of 365 days, by which providers turn a price a month into one an hour."""

_BYTES_PER_GB = 10**9
_NS_PER_S = 10**9
_BYTE_NS_PER_GB_MONTH = _BYTES_PER_GB * HOURS_PER_MONTH * 3600 * _NS_PER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCheckpoint:
    """A checkpoint for as long as it is kept."""

    step: int
    size_bytes: int
    saved_unix_ns: int
    gone_unix_ns: int | None
    """None: it is there still."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """What the checkpoints of a run have taken up until a moment."""

    checkpoints: Sequence[StoredCheckpoint]
    """Those that are there and those that are gone, oldest save first."""
    now_unix_ns: int
    """Until when those that are there are counted."""
    usd_per_gb_month: float | None
    """None: nobody has said what it costs."""
    num_untimed: int = 0
    """Saves whose journal does not hold when they were: they are not counted."""

    @property
    def kept(self) -> Sequence[StoredCheckpoint]:
        """Those that are there."""
        return [checkpoint for checkpoint in self.checkpoints if checkpoint.gone_unix_ns is None]

    @property
    def kept_bytes(self) -> int:
        """That they take up."""
        return sum(checkpoint.size_bytes for checkpoint in self.kept)

    def byte_ns(self, checkpoint: StoredCheckpoint) -> int:
        """Bytes times nanoseconds of one checkpoint; a wall clock that was set back makes no time below zero."""
        end_ns = self.now_unix_ns if checkpoint.gone_unix_ns is None else checkpoint.gone_unix_ns
        return checkpoint.size_bytes * max(0, end_ns - checkpoint.saved_unix_ns)

    def gb_months_of(self, checkpoint: StoredCheckpoint) -> float:
        """10^9 bytes and ``HOURS_PER_MONTH`` each."""
        return self.byte_ns(checkpoint) / _BYTE_NS_PER_GB_MONTH

    @property
    def gb_months(self) -> float:
        """Of all checkpoints."""
        return sum(map(self.byte_ns, self.checkpoints)) / _BYTE_NS_PER_GB_MONTH

    def usd_of(self, checkpoint: StoredCheckpoint) -> float | None:
        """Dollars of one checkpoint; None without a price."""
        if self.usd_per_gb_month is None:
            return None
        return self.usd_per_gb_month * self.gb_months_of(checkpoint)

    @property
    def cost_usd(self) -> float | None:
        """Dollars of all; None without a price."""
        costs = [self.usd_of(checkpoint) for checkpoint in self.checkpoints]
        return None if self.usd_per_gb_month is None else fsum(cost or 0.0 for cost in costs)

    def document(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "as_of": moment_of(self.now_unix_ns),
            "checkpoints": len(self.kept),
            "bytes": self.kept_bytes,
            "gb_months": self.gb_months,
            "usd_per_gb_month": self.usd_per_gb_month,
            "cost_usd": self.cost_usd,
            "untimed": self.num_untimed,
        }


def storage_of(
    records: RunRecords,
    *,
    now_unix_ns: int,
    usd_per_gb_month: float | None,
    present: Mapping[int, int] | None = None,
) -> Storage:
    """What the checkpoints of a run have taken up until now.

    One that is saved again under its step ends the one before, unless both are there. One that is not there, though the run
    has not removed it, was removed by somebody else at a moment that nobody wrote down: it counts until the last word
    about any checkpoint, which is the least that it can have been.

    Args:
        records: Of a run that is over, or in progress.
        now_unix_ns: The wall clock.
        usd_per_gb_month: Dollars for 10^9 bytes a month; None if not known.
        present: How many checkpoints of each step are there; None: nobody has looked, and the journals are believed.

    Raises: JournalError if an event lacks what its kind must have.
    """
    lives: dict[int, list[StoredCheckpoint]] = defaultdict(list)
    last_word_ns, num_untimed = 0, 0
    for event in _told(records):
        moment_ns = event.fields.get("unix_ns")
        if not isinstance(moment_ns, int):
            num_untimed += event.kind == EventKind.CHECKPOINT
            continue
        last_word_ns = max(last_word_ns, moment_ns)
        step = event.integer("step")
        if event.kind == EventKind.CHECKPOINT:
            lives[step].append(
                StoredCheckpoint(
                    step=step, size_bytes=event.integer("bytes"), saved_unix_ns=moment_ns, gone_unix_ns=None
                )
            )
        elif lives[step]:
            lives[step][-1] = replace(lives[step][-1], gone_unix_ns=moment_ns)
    found = [
        checkpoint
        for step, saved in lives.items()
        for checkpoint in _with_ends(
            saved, num_present=None if present is None else present.get(step, 0), last_word_ns=last_word_ns
        )
    ]
    return Storage(
        checkpoints=sorted(found, key=lambda checkpoint: checkpoint.saved_unix_ns),
        now_unix_ns=now_unix_ns,
        usd_per_gb_month=usd_per_gb_month,
        num_untimed=num_untimed,
    )


def _told(records: RunRecords) -> Iterator[Event]:
    """What the ranks say of checkpoints that came to be and went, in order."""
    for _, event in progress(records, (EventKind.CHECKPOINT, EventKind.PRUNED)):
        if event.kind == EventKind.PRUNED or event.fields.get("state") == "saved":
            yield event


def _with_ends(
    saved: Sequence[StoredCheckpoint], *, num_present: int | None, last_word_ns: int
) -> Iterator[StoredCheckpoint]:
    """The checkpoints that were saved for one step, in order, each with its end."""
    ends_ns = [*(following.saved_unix_ns for following in saved[1:]), last_word_ns]
    is_open = [checkpoint.gone_unix_ns is None for checkpoint in saved]
    num_older = sum(is_open) - (1 if num_present is None else num_present)
    for checkpoint, end_ns in zip(saved, ends_ns, strict=True):
        if checkpoint.gone_unix_ns is None and num_older > 0:
            num_older -= 1
            yield replace(checkpoint, gone_unix_ns=end_ns)
        else:
            yield checkpoint


def moment_of(unix_ns: int) -> str:
    """A moment of the wall clock, to the second.

    >>> moment_of(1_793_448_000_000_000_000)
    '2026-10-31T12:00:00Z'
    """
    return f"{datetime.fromtimestamp(unix_ns // _NS_PER_S, UTC):%Y-%m-%dT%H:%M:%SZ}"
