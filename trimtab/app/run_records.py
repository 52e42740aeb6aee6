"""The journals and clocks of a run, read from its folder into what the ledger works on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
import re

from trimtab.app.run_folders import JOURNAL_FOLDER
from trimtab.ledger import ClockReading, Event, EventKind, Incarnation, RunRecords, read_clocks, read_journal

CLOCKS_FOLDER = "clocks"

_AGENT = re.compile(r"agent-([0-9]+)\.jsonl")
_RANK = re.compile(r"rank-([0-9]+)-([0-9]+)\.([0-9]+)\.(?:jsonl|clock)")
_COUNTED_FROM_ZERO = frozenset({EventKind.STEP, EventKind.ABORTED, EventKind.SHARE, EventKind.COMMIT})

_Numbering = Mapping[tuple[int, int, int], int]
"""The ledger's number of a process, by rank, attempt and its number within the attempt."""


def read_records(folder: Path) -> RunRecords:
    """Everything that a run has written so far; safe beside a running one.

    Two conventions meet here. Files and agents number the processes of a rank within an attempt, the ledger
    over all attempts. Ranks number steps from 0, by what they compute; the ledger numbers updates from 1.
    """
    agents = {
        int(match[1]): read_journal(path.read_bytes()).events
        for path in sorted((folder / JOURNAL_FOLDER).glob("agent-*.jsonl"))
        if (match := _AGENT.fullmatch(path.name))
    }
    numbering = _number_processes(agents)
    ranks = {
        _incarnation(path, numbering): [_counted_from_one(event) for event in read_journal(path.read_bytes()).events]
        for path in sorted((folder / JOURNAL_FOLDER).glob("rank-*.jsonl"))
        if _RANK.fullmatch(path.name)
    }
    peak = _peak_flops_per_s(ranks)
    return RunRecords(
        agents=[
            [_as_ledger_has_it(event, attempt, numbering, peak) for event in agents[attempt]]
            for attempt in sorted(agents)
        ],
        ranks=ranks,
        clocks=dict(_read_clocks(folder / CLOCKS_FOLDER, numbering)),
    )


def _number_processes(agents: Mapping[int, Sequence[Event]]) -> _Numbering:
    """Consecutive numbers for the processes of each rank, in order of attempts."""
    numbering: dict[tuple[int, int, int], int] = {}
    next_numbers: dict[int, int] = {}
    for attempt in sorted(agents):
        for event in agents[attempt]:
            if event.kind == EventKind.SPAWNED:
                rank = event.integer("rank")
                number = next_numbers.get(rank, 0)
                numbering[rank, attempt, event.integer("incarnation")] = number
                next_numbers[rank] = number + 1
    return numbering


def _incarnation(path: Path, numbering: _Numbering) -> Incarnation:
    match = _RANK.fullmatch(path.name)
    assert match is not None, path
    rank, attempt, number = int(match[1]), int(match[2]), int(match[3])
    # A process that its agent did not live to write down belongs to no attempt; its number is below all others.
    return Incarnation(rank, numbering.get((rank, attempt, number), -1 - number))


def _read_clocks(folder: Path, numbering: _Numbering) -> list[tuple[Incarnation, ClockReading]]:
    found = []
    for path in sorted(folder.glob("rank-*.clock")):
        reading = read_clocks(path.read_bytes()) if _RANK.fullmatch(path.name) else None
        if reading is not None:
            found.append((_incarnation(path, numbering), reading))
    return found


def _counted_from_one(event: Event) -> Event:
    if event.kind not in _COUNTED_FROM_ZERO:
        return event
    return replace(event, fields={**event.fields, "step": event.integer("step") + 1})


def _as_ledger_has_it(event: Event, attempt: int, numbering: _Numbering, peak: float | None) -> Event:
    fields = dict(event.fields)
    key = (fields.get("rank"), attempt, fields.get("incarnation"))
    if key in numbering:
        fields["incarnation"] = numbering[key]
    if event.kind == EventKind.RUN:
        fields.setdefault("peak_flops_per_s", peak)
    return replace(event, fields=fields)


def _peak_flops_per_s(ranks: Mapping[Incarnation, Sequence[Event]]) -> float | None:
    """What the ranks say of their devices; they are equal in an exact run, so the first speaks for all."""
    peaks = (event.number("flops_per_s") for events in ranks.values() for event in events if event.kind == "peak")
    return next((peak for peak in peaks if peak is not None), None)
