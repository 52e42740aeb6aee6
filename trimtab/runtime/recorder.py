"""What a rank writes down while it works: its clocks and its journal, both readable after ``kill -9``."""

import mmap
import os
import time
from pathlib import Path
from types import TracebackType

from trimtab.ledger import CLOCK_FILE_BYTES, ClockFile, encode_event
from trimtab.terms import Clock


class Recorder:
    """One rank's clocks and journal. One thread switches clocks; events may come from any thread.

    Args:
        folder: The run's folder; ``clocks/`` and ``journal/`` are made inside.
    """

    def __init__(self, folder: Path, *, rank: int, incarnation: int) -> None:
        name = f"rank-{rank}-{incarnation}"
        for part in ("clocks", "journal"):
            (folder / part).mkdir(exist_ok=True)
        self._journal = os.open(
            folder / "journal" / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        with open(folder / "clocks" / f"{name}.clock", "w+b") as file:
            file.truncate(CLOCK_FILE_BYTES)
            self._map = mmap.mmap(file.fileno(), CLOCK_FILE_BYTES)
        self._current = Clock.RESTART
        self._since_ns = time.monotonic_ns()
        self._clocks = ClockFile(self._map, clock=self._current, now_ns=self._since_ns)

    def switch(self, clock: Clock, *, at_ns: int | None = None) -> Clock:
        """Let ``clock`` run from now on, or from a past moment inside the running interval; returns the one before."""
        self._since_ns = time.monotonic_ns() if at_ns is None else at_ns
        self._current = clock
        return self._clocks.switch(clock, self._since_ns)

    def split_wait(self, clock: Clock, *, at_ns: int) -> None:
        """If this rank is waiting for peers: the part of the wait after ``at_ns`` belongs to ``clock``."""
        if self._current in (Clock.COMM, Clock.BUBBLE):
            self.switch(clock, at_ns=min(max(at_ns, self._since_ns), time.monotonic_ns()))

    def lap(self) -> dict[str, int]:
        """Nanoseconds per clock since the last lap; clocks that did not run are left out."""
        self._since_ns = time.monotonic_ns()
        return self._clocks.lap(self._since_ns)

    def within(self, clock: Clock) -> "Within":
        """A block whose time belongs to ``clock``; afterwards the clock before runs on."""
        return Within(self, clock)

    def event(self, kind: str, **fields: object) -> None:
        """Append one event to the journal."""
        os.write(self._journal, encode_event(kind, time.monotonic_ns(), **fields))


class Within:
    """The context manager that ``Recorder.within`` returns."""

    __slots__ = ("_before", "_clock", "_recorder")

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder, self._clock, self._before = recorder, clock, clock

    def __enter__(self) -> None:
        self._before = self._recorder.switch(self._clock)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._recorder.switch(self._before)
