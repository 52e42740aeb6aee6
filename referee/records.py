"""Reads what a run wrote, with a reader of its own: journals of JSON lines, and clock files of int64.

Written from the description of the formats, not from the package's readers, so that a mistake made there is not
made here again.
"""

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLOCKS = (
    "unattributed",
    "compute",
    "comm",
    "input_wait",
    "host_wait",
    "checkpoint_stall",
    "evaluation",
    "detect",
    "restart",
    "degraded",
    "bubble",
    "probe",
)
"""The clocks of a clock file, in the order of its totals."""

_MAGIC = b"trimtabC"
_HEADER_WORDS = 5
_RANK_FILE = re.compile(r"rank-(\d+)-(\d+)\.(?:jsonl|clock)")
_AGENT_FILE = re.compile(r"agent-(\d+)\.jsonl")

Event = dict[str, Any]
Process = tuple[int, int]
"""Rank, and which of the rank's processes (its incarnation)."""


def read_journal(path: Path) -> list[Event]:
    """The events of one journal; a last line that its writer did not finish is left out."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def agent_journals(run: Path) -> dict[int, list[Event]]:
    """The agent's journal of each attempt, by its number."""
    found = {}
    for path in (run / "journal").iterdir():
        if match := _AGENT_FILE.fullmatch(path.name):
            found[int(match[1])] = read_journal(path)
    return dict(sorted(found.items()))


def rank_journals(run: Path) -> dict[Process, list[Event]]:
    """The journal of each process."""
    found = {}
    for path in sorted((run / "journal").iterdir()):
        if match := _RANK_FILE.fullmatch(path.name):
            found[int(match[1]), int(match[2])] = read_journal(path)
    return found


def of_kind(events: list[Event], kind: str) -> list[Event]:
    """The events of one kind."""
    return [event for event in events if event["event"] == kind]


def newest_commit(run: Path) -> int:
    """The number of the newest step (from 0) that any rank has recorded; -1 before the first."""
    steps = [event["step"] for journal in rank_journals(run).values() for event in of_kind(journal, "step")]
    return max(steps, default=-1)


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """A clock file: when the clocks began, which one runs, and the closed intervals of each, ns."""

    first_ns: int
    running: str
    totals: dict[str, int]

    @property
    def last_ns(self) -> int:
        """The last switch."""
        return self.first_ns + sum(self.totals.values())


def clock_files(run: Path) -> dict[Process, Clocks]:
    """The clocks of each process that started them.

    Raises: ValueError if a file is no clock file.
    """
    found = {}
    for path in sorted((run / "clocks").iterdir()):
        match = _RANK_FILE.fullmatch(path.name)
        data = path.read_bytes()
        if match is None or not any(data[:8]):
            continue
        if data[:8] != _MAGIC or len(data) != 8 * (_HEADER_WORDS + len(CLOCKS)):
            raise ValueError(f"{path} is no clock file of {len(CLOCKS)} clocks")
        words = struct.unpack(f"<{_HEADER_WORDS + len(CLOCKS)}q", data)
        found[int(match[1]), int(match[2])] = Clocks(
            first_ns=words[2],
            running=CLOCKS[words[3]],
            totals=dict(zip(CLOCKS, words[_HEADER_WORDS:], strict=True)),
        )
    return found
