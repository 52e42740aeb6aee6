"""Clock files: where a process's time went, readable after ``kill -9``.

A clock file is an array of little-endian int64 that its process maps into memory and nobody else writes:

    0  magic               written last when the clocks start: zero until then
    1  version
    2  first_ns            when the clocks started, monotonic clock
    3  current             the running clock, as its position in ``terms.Clock``
    4  since_ns            when the running clock was switched on
    5  total_ns per clock  in the order of ``terms.Clock``, the running interval not included

Exactly one clock runs at any time, so first_ns plus all totals is the moment of the last switch. A switch
writes the total, then since_ns, then the running clock. A kill between two of these writes leaves a total
that is ahead of since_ns, and still no interval is lost or doubled, because the reader takes since_ns from
the totals. All that such a kill can do is to leave the microsecond after it on the clock before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.ledger.errors import ClockFileError
from trimtab.terms import Clock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from mmap import mmap

_MAGIC = int.from_bytes(b"trimtabC", "little")
_VERSION = 1
_FIRST, _CURRENT, _SINCE, _TOTALS = 2, 3, 4, 5
_CLOCKS = tuple(Clock)
_POSITIONS = {clock: position for position, clock in enumerate(_CLOCKS)}

CLOCK_FILE_BYTES = 8 * (_TOTALS + len(_CLOCKS))
"""The size that a clock file must be given before it is mapped."""


_OLDEST_BYTES = 120
"""Of files with ten clocks, the fewest that a release has had."""


class ClockFile:
    """The clocks of one process, of which exactly one runs.

    Belongs to one thread of one process. Takes the time as an argument: ``time.perf_counter_ns()`` or
    ``time.monotonic_ns()``, but always the clock that the agent's journal uses too. A switch costs about
    0.13 us (measured, CPython 3.11, 2-core x86), reading the time not included.
    """

    def __init__(self, buffer: bytearray | memoryview | mmap, *, clock: Clock, now_ns: int) -> None:
        """Start the clocks with ``clock`` running.

        Args:
            buffer: At least ``CLOCK_FILE_BYTES`` that can be written. It is held until ``release``.
            clock: What the process is doing now.
            now_ns: Monotonic clock, ns; becomes first_ns.
        """
        words = memoryview(buffer).cast("B")[:CLOCK_FILE_BYTES].cast("q")
        words[0] = 0
        words[1], words[_FIRST], words[_CURRENT], words[_SINCE] = _VERSION, now_ns, _POSITIONS[clock], now_ns
        for word in range(_TOTALS, len(words)):
            words[word] = 0
        words[0] = _MAGIC
        self._words = words
        self._running = _POSITIONS[clock]
        self._since_ns = now_ns
        self._lap = [0] * len(_CLOCKS)

    def switch(self, clock: Clock, now_ns: int) -> Clock:
        """Close the running interval at ``now_ns`` and let ``clock`` run.

        Returns: the clock that ran until now, for who wants to switch back.
        """
        words = self._words
        before = self._running
        words[_TOTALS + before] += now_ns - self._since_ns
        words[_SINCE] = self._since_ns = now_ns
        words[_CURRENT] = self._running = _POSITIONS[clock]
        return _CLOCKS[before]

    def lap(self, now_ns: int) -> dict[str, int]:
        """Nanoseconds on each clock since the last lap, or since the start; clocks that did not run are left out.

        What the ``clocks`` field of a ``step`` event holds.
        """
        self.switch(_CLOCKS[self._running], now_ns)
        totals = list(self._words[_TOTALS:])
        laps = {
            clock.value: total - before
            for clock, total, before in zip(_CLOCKS, totals, self._lap, strict=True)
            if total != before
        }
        self._lap = totals
        return laps

    def release(self) -> None:
        """Let go of the buffer, which can then be unmapped. The clock that runs goes on for the reader."""
        self._words.release()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockReading:
    """What a clock file said when it was read."""

    first_ns: int
    """When the clocks started."""
    running: Clock
    closed: Mapping[Clock, int]
    """Closed intervals of every clock, ns; the one that runs is not included."""

    @property
    def last_ns(self) -> int:
        """The last switch: the last moment at which the process is known to have lived."""
        return self.first_ns + sum(self.closed.values())

    def totals(self, *, until_ns: int) -> dict[Clock, int]:
        """Every clock's time up to ``until_ns``, the running interval included; they add up to the whole time.

        ``until_ns`` before the last switch counts as the last switch.
        """
        totals = dict(self.closed)
        totals[self.running] += max(0, until_ns - self.last_ns)
        return totals


def read_clocks(data: bytes | bytearray | memoryview | mmap) -> ClockReading | None:
    """What a clock file says, now or after its process has gone; None if the clocks were never started.

    A file of a live process may be read: the answer is off by no more than the reading takes.

    Raises: ClockFileError if the bytes are no clock file, or one of another version.
    """
    if len(data) < _OLDEST_BYTES:
        raise ClockFileError(f"{len(data)} bytes, where a clock file has {CLOCK_FILE_BYTES}")
    # Clocks are only ever appended: those that an earlier release did not have did not run.
    words = memoryview(bytes(data[:CLOCK_FILE_BYTES]).ljust(CLOCK_FILE_BYTES, b"\0")).cast("q")
    if words[0] == 0:
        return None
    if words[0] != _MAGIC or words[1] != _VERSION:
        raise ClockFileError(
            f"starts with {bytes(data[:8])!r}, version {words[1]}; expected a clock file, version {_VERSION}"
        )
    return ClockReading(
        first_ns=words[_FIRST],
        running=_CLOCKS[words[_CURRENT]],
        closed=dict(zip(_CLOCKS, words[_TOTALS:], strict=True)),
    )
