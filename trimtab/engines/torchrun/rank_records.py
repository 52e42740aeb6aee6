"""What ranks under torchrun leave in the run's folder: their events, their first cause, the report of the first rank."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.ledger import Event, read_clocks, read_events

_JOURNAL = re.compile(r"rank-([0-9]+)-([0-9]+)\.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEvent:
    """One event of a rank's journal, and whose it is."""

    rank: int
    incarnation: int
    event: Event


class RankJournals:
    """The journals of the ranks of one attempt, read as they grow.

    Args:
        folder: Of the run.
        first_incarnation: Processes of earlier attempts have lower numbers.
    """

    def __init__(self, folder: Path, *, first_incarnation: int) -> None:
        self._folder, self._first = folder / "journal", first_incarnation
        self._read: dict[Path, int] = {}

    def news(self) -> Iterator[RankEvent]:
        """What was written since the last call; by process, the oldest incarnation first."""
        for incarnation, rank, path in sorted(self._journals()):
            for event in read_events(self._whole_lines(path)):
                yield RankEvent(rank=rank, incarnation=incarnation, event=event)

    def _journals(self) -> Iterator[tuple[int, int, Path]]:
        for path in self._folder.glob("rank-*.jsonl"):
            match = _JOURNAL.fullmatch(path.name)
            if match and int(match[2]) >= self._first:
                yield int(match[2]), int(match[1]), path

    def _whole_lines(self, path: Path) -> bytes:
        """What is new, up to its last newline; the rest is still being written."""
        with open(path, "rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        return whole


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstCause:
    """Why the ranks of one incarnation ended, as the first of them that knew it wrote down."""

    rank: int
    step: int
    phase: str
    error: str

    def __str__(self) -> str:
        """For people, in the words of the local engine's agent."""
        return f"rank {self.rank} failed: {self.error}"


def first_cause(folder: Path, incarnation: int) -> FirstCause | None:
    """What a rank itself raised in an incarnation; None if none did, as far as it could still write.

    A rank writes it as ``errors/attempt-<incarnation>.json``, whole and only if no other rank did before.
    """
    return _read_cause(folder / "errors" / f"attempt-{incarnation}.json")


def broken_collective(folder: Path, incarnation: int) -> FirstCause | None:
    """The collective that broke first under a rank in an incarnation: some peer was gone, for whatever reason."""
    return _read_cause(folder / "errors" / f"attempt-{incarnation}-collective.json")


def read_results(folder: Path, attempt: int) -> dict[str, Any] | None:
    """What the first rank reported at the end of this attempt; None if it did not come to that."""
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return report if isinstance(report, dict) and report.get("attempt") == attempt else None


def clock_times(folder: Path, rank: int, incarnation: int) -> tuple[int, int] | None:
    """When a process started its clocks and when it last switched one, ns; None if it did not come to that."""
    path = folder / "clocks" / f"rank-{rank}-{incarnation}.clock"
    reading = read_clocks(path.read_bytes()) if path.exists() and path.stat().st_size else None
    return None if reading is None else (reading.first_ns, reading.last_ns)


def _read_cause(path: Path) -> FirstCause | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return FirstCause(rank=values["rank"], step=values["step"], phase=values["phase"], error=values["error"])
