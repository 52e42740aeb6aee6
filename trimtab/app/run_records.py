"""The journals and clocks of a run, read from its folder into what the ledger works on."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trimtab.app.run_folders import JOURNAL_FOLDER, is_alive
from trimtab.ledger import (
    ClockReading,
    Event,
    EventKind,
    Incarnation,
    RunRecords,
    clock_offsets_ns,
    moved,
    read_clocks,
    read_journal,
)

CLOCKS_FOLDER = "clocks"

_AGENT = re.compile(r"agent-([0-9]+)\.jsonl")
_RANK = re.compile(r"rank-([0-9]+)-([0-9]+)\.(?:jsonl|clock)")
_COUNTED_FROM_ZERO = frozenset(
    {
        EventKind.STEP,
        EventKind.ABORTED,
        EventKind.SHARE,
        EventKind.COMMIT,
        EventKind.DIGEST,
        EventKind.FAULT,
        EventKind.SPIKE,
        EventKind.SLOW,
        EventKind.BALANCED,
        EventKind.PROBE,
    }
)


def read_records(folder: Path) -> RunRecords:
    """Everything that a run has written so far; safe beside a running one.

    Two conventions meet here: ranks number steps from 0, by what they compute; the ledger numbers updates
    from 1, by what was committed.
    """
    has_ended = not is_alive(folder)  # asked first: what has ended by now has written everything
    agents = [
        [event for event in read_journal(path.read_bytes()).events if event.kind != EventKind.DECIDED]
        for path in _agent_files(folder / JOURNAL_FOLDER)
    ]
    offsets_ns = clock_offsets_ns(agents)
    ranks = {
        incarnation: [
            moved(_counted_from_one(event), offsets_ns.get(incarnation, 0))
            for event in read_journal(path.read_bytes()).events
        ]
        for incarnation, path in _rank_files(folder / JOURNAL_FOLDER, "*.jsonl")
    }
    peak = _peak_flops_per_s(ranks.values())
    return RunRecords(
        agents=[[_with_peak(event, peak) for event in agent] for agent in agents],
        ranks=ranks,
        clocks={
            incarnation: replace(reading, first_ns=reading.first_ns + offsets_ns.get(incarnation, 0))
            for incarnation, reading in read_clock_files(folder / CLOCKS_FOLDER)
        },
        has_ended=has_ended,
    )


def read_clock_files(folder: Path) -> Iterator[tuple[Incarnation, ClockReading]]:
    """The clocks of every process of a run that has started them."""
    for incarnation, path in _rank_files(folder, "*.clock"):
        data = path.read_bytes()
        reading = read_clocks(data) if data else None  # a process that only just made its file
        if reading is not None:
            yield incarnation, reading


def _agent_files(folder: Path) -> list[Path]:
    """The agent's journals, oldest attempt first."""
    found = {int(match[1]): path for path in folder.glob("*.jsonl") if (match := _AGENT.fullmatch(path.name))}
    return [found[attempt] for attempt in sorted(found)]


def _rank_files(folder: Path, pattern: str) -> Iterator[tuple[Incarnation, Path]]:
    for path in sorted(folder.glob(pattern)):
        if match := _RANK.fullmatch(path.name):
            yield Incarnation(int(match[1]), int(match[2])), path


def _counted_from_one(event: Event) -> Event:
    if event.kind not in _COUNTED_FROM_ZERO:
        return event
    return replace(event, fields={**event.fields, "step": event.integer("step") + 1})


def _with_peak(event: Event, peak: float | None) -> Event:
    if event.kind != EventKind.RUN:
        return event
    return replace(event, fields={"peak_flops_per_s": peak, **event.fields})


def _peak_flops_per_s(journals: Iterable[Sequence[Event]]) -> float | None:
    """What the ranks say of their devices; these are equal in one run, so the first that speaks will do."""
    peaks = (event.number("flops_per_s") for journal in journals for event in journal if event.kind == "peak")
    return next((peak for peak in peaks if peak is not None), None)
