"""A run as relations: steps, laps, the ledger, events, attempts, recoveries, checkpoints and storage.

Times are nanoseconds of the monotonic clock of the machine that wrote them, and seconds since the attempt's
first event; those of two machines, or of two boots of one, cannot be compared.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.ledger.accounts import DeviceTime, Entry, Label, account, layer_of
from trimtab.ledger.attempts import Attempt, attempts_of
from trimtab.ledger.checkpoint_folders import FoundCheckpoint
from trimtab.ledger.events import EventKind, Incarnation, Lap, RunRecords, laps_of
from trimtab.ledger.journal import Event
from trimtab.ledger.recoveries import Recovery, recoveries_of
from trimtab.ledger.series import Metric, Point, default_series, progress
from trimtab.ledger.storage import Storage, StoredCheckpoint, moment_of
from trimtab.terms import Clock, Column, ColumnType, LedgerClass, Relation, Schema

_TEXT, _INTEGER, _REAL, _BOOLEAN = (
    ColumnType.TEXT,
    ColumnType.INTEGER,
    ColumnType.REAL,
    ColumnType.BOOLEAN,
)
_NS_PER_S = 10**9
_NS_PER_HOUR = 3600 * _NS_PER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A step as it counts now.

    Args:
        point: Its loss, with the time.
        attempt: Counted from 1.
        began_ns: When its attempt began.
        metrics: Its other figures; None where there is none or it was not finite.
        nonfinite: What was not finite, by metric.
        duration_ns: Of the slowest rank's lap; None if no rank told.
    """

    point: Point
    attempt: int
    began_ns: int
    metrics: Mapping[Metric, float | None]
    nonfinite: Mapping[Metric, str]
    duration_ns: int | None


STEPS: Schema[Committed] = Schema(
    name="steps",
    meaning="a committed step, as it counts now: one that was done again stands here once",
    columns=(
        Column("step", _INTEGER, "counted from 1", lambda found: found.point.step),
        Column("attempt", _INTEGER, "counted from 1", lambda found: found.attempt),
        Column("t_ns", _INTEGER, "moment of the commit", lambda found: found.point.t_ns),
        Column(
            "t_s", _REAL, "since the attempt's first event",
            lambda found: _since(found.point.t_ns, found.began_ns),
        ),
        Column(
            "duration_s", _REAL, "from the first rank's start to the last one's end",
            lambda found: _seconds(found.duration_ns),
        ),
        Column("loss", _REAL, "nats a token; NULL if it was not finite", lambda found: found.point.value),
        Column("grad_norm", _REAL, "before clipping; NULL likewise", lambda found: found.metrics[Metric.GRAD_NORM]),
        Column("lr", _REAL, "learning rate", lambda found: found.metrics[Metric.LR]),
        Column("tokens", _INTEGER, "positions computed", lambda found: _whole(found.metrics[Metric.TOKENS])),
        Column(
            "targets", _INTEGER, "of these, those that count for the loss",
            lambda found: _whole(found.metrics[Metric.TARGETS]),
        ),
        Column(
            "eval_loss", _REAL, "of held-out text, after this step; NULL if it was not scored",
            lambda found: found.metrics[Metric.EVAL_LOSS],
        ),
        Column(
            "nonfinite", _TEXT, "what was not finite: `loss nan`; NULL if all was",
            lambda found: _named(found.nonfinite),
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLap:
    """A step of one rank, or an attempt at one."""

    attempt: int
    incarnation: Incarnation
    lap: Lap


def _clock(clock: Clock) -> Column[RankLap]:
    return Column(
        f"{clock.value}_ns", _INTEGER, f"on the clock `{clock.value}`", lambda found: found.lap.clocks.get(clock, 0)
    )  # fmt: skip


LAPS: Schema[RankLap] = Schema(
    name="laps",
    meaning="one rank's part in a step, also if it was given up or done again later",
    columns=(
        Column("attempt", _INTEGER, "counted from 1", lambda found: found.attempt),
        Column("rank", _INTEGER, "whose it is", lambda found: found.incarnation.rank),
        Column("incarnation", _INTEGER, "the process of the rank", lambda found: found.incarnation.number),
        Column("step", _INTEGER, "counted from 1", lambda found: found.lap.step),
        Column("epoch", _INTEGER, "the process group that it ran in", lambda found: found.lap.epoch),
        Column("start_ns", _INTEGER, "its start", lambda found: found.lap.start_ns),
        Column(
            "duration_s", _REAL, "from its start to its end",
            lambda found: _seconds(found.lap.end_ns - found.lap.start_ns),
        ),
        Column("aborted", _BOOLEAN, "whether the rank gave it up", lambda found: found.lap.is_aborted),
        Column("tokens", _INTEGER, "positions computed by this rank", lambda found: found.lap.tokens),
        Column("flops", ColumnType.BIG_INTEGER, "model FLOPs of these", lambda found: found.lap.flops),
        Column("sent_bytes", ColumnType.BIG_INTEGER, "payload that this rank sent", lambda found: found.lap.sent_bytes),
        Column("shares", _INTEGER, "shares computed by this rank", lambda found: len(found.lap.shares)),
        Column("recovered", _INTEGER, "of these, those of a lost peer", lambda found: found.lap.num_recovered),
        *(_clock(clock) for clock in Clock),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """A line of the ledger for one device in one attempt."""

    time: DeviceTime
    rank: int | None
    label: Label
    ledger_class: LedgerClass
    ns: int

    @property
    def entry(self) -> Entry:
        """The line of the report that it belongs to."""
        return self.ledger_class if self.label is Label.KEPT else self.label

    @property
    def usd(self) -> float | None:
        """At the device's own price."""
        price = self.time.price_usd_per_hour
        return None if price is None else price * self.ns / _NS_PER_HOUR


LEDGER: Schema[Spent] = Schema(
    name="ledger",
    meaning="what one device did for how long; the rows of a device add up to its allocated time",
    columns=(
        Column("attempt", _INTEGER, "counted from 1", lambda spent: spent.time.attempt + 1),
        Column("device", _TEXT, "id of the device", lambda spent: spent.time.device),
        Column("rank", _INTEGER, "that ran on it first; NULL if none did", lambda spent: spent.rank),
        Column(
            "class", _TEXT, "what the time went into: `useful`, `comm_skew`, …",
            lambda spent: spent.ledger_class.value,
        ),
        Column(
            "label", _TEXT, "`kept`, or `lost_work` if it was rolled back or done again",
            lambda spent: spent.label.value,
        ),
        Column("line", _TEXT, "line of the report: the class, or `lost_work`", lambda spent: spent.entry.value),
        Column(
            "layer", _TEXT, "layer of that line: `compute`, `communication`, `stability`, `decision`, `unattributed`",
            lambda spent: layer_of(spent.entry).value,
        ),
        Column("ns", _INTEGER, "device time", lambda spent: spent.ns),
        Column("usd", _REAL, "dollars for it; NULL if the device has no price", lambda spent: spent.usd),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """An event of a run's journals.

    Args:
        event: As written.
        attempt: Counted from 1.
        began_ns: When the attempt began.
        incarnation: Who wrote it; None for the agent.
    """

    event: Event
    attempt: int
    began_ns: int
    incarnation: Incarnation | None

    @property
    def rank(self) -> int | None:
        """The rank that wrote it, or that the agent speaks of."""
        return self.incarnation.rank if self.incarnation else _integer(self.event, "rank")


EVENTS: Schema[Told] = Schema(
    name="events",
    meaning="an event of a journal of the run",
    columns=(
        Column("attempt", _INTEGER, "counted from 1", lambda told: told.attempt),
        Column("t_ns", _INTEGER, "its moment", lambda told: told.event.t_ns),
        Column("t_s", _REAL, "since the attempt's first event", lambda told: _since(told.event.t_ns, told.began_ns)),
        Column(
            "source", _TEXT, "who wrote it: `agent` or `rank`",
            lambda told: "rank" if told.incarnation else "agent",
        ),
        Column("rank", _INTEGER, "who wrote it, or whom the agent speaks of", lambda told: told.rank),
        Column("kind", _TEXT, "`step`, `commit`, `fault`, `formed`, `checkpoint`, …", lambda told: told.event.kind),
        Column(
            "step", _INTEGER, "that it speaks of, from 1; NULL if of none",
            lambda told: _integer(told.event, "step"),
        ),
        Column(
            "fields", _TEXT, "everything that it holds, as JSON: `fields->>'cause'`",
            lambda told: json.dumps(told.event.fields),
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """An attempt with what became of it."""

    number: int
    attempt: Attempt
    steps: Sequence[int]

    def ending(self, field: str) -> str | None:
        """A field of the event that ended it; None if nobody ended it."""
        finished = self.attempt.events(EventKind.FINISHED)[-1:]
        value = finished[0].fields.get(field) if finished else None
        return None if value is None else str(value)

    @property
    def began_ns(self) -> int:
        """Its first event."""
        return min((event.t_ns for event in self.attempt.journal), default=0)


ATTEMPTS: Schema[Tried] = Schema(
    name="attempts",
    meaning="an attempt at the run: from a start or a resume to its end",
    columns=(
        Column("attempt", _INTEGER, "counted from 1", lambda tried: tried.number),
        Column(
            "state", _TEXT, "`done`, `failed`, `stopped`; NULL if it goes on, or nobody wrote its end",
            lambda tried: tried.ending("state"),
        ),
        Column("error", _TEXT, "what ended it; NULL if nothing did", lambda tried: tried.ending("error")),
        Column("start_ns", _INTEGER, "its first event", lambda tried: tried.began_ns),
        Column(
            "duration_s", _REAL, "to its last event",
            lambda tried: _since(tried.attempt.last_event_ns, tried.began_ns),
        ),
        Column(
            "devices", _INTEGER, "devices that were paid for",
            lambda tried: len({paid.device for paid in tried.attempt.paid}),
        ),
        Column("processes", _INTEGER, "processes that were started", lambda tried: len(tried.attempt.processes)),
        Column("commits", _INTEGER, "steps committed, also those rolled back later", lambda tried: len(tried.steps)),
        Column(
            "first_step", _INTEGER, "of these; NULL if it committed none",
            lambda tried: min(tried.steps, default=None),
        ),
        Column("last_step", _INTEGER, "of these", lambda tried: max(tried.steps, default=None)),
        Column(
            "weights_sha256", _TEXT, "of the weights at its end; NULL if not known",
            lambda tried: tried.ending("weights_sha256"),
        ),
    ),
)  # fmt: skip

RECOVERIES: Schema[tuple[int, Recovery]] = Schema(
    name="recoveries",
    meaning="a fault and what it cost",
    columns=(
        Column("recovery", _INTEGER, "counted from 1", lambda found: found[0]),
        Column("step", _INTEGER, "in which it happened", lambda found: found[1].step),
        Column("rank", _INTEGER, "whose it was; NULL if no rank's", lambda found: found[1].rank),
        Column("cause", _TEXT, "in a few words", lambda found: found[1].cause),
        Column("detect_s", _REAL, "from the fault to its declaration", lambda found: found[1].detect_s),
        Column(
            "resumed_s", _REAL, "from the fault to the next commit; NULL if there was none",
            lambda found: found[1].resumed_s,
        ),
        Column("steps_lost", _INTEGER, "committed steps that were rolled back", lambda found: found[1].steps_lost),
    ),
)  # fmt: skip

CHECKPOINTS: Schema[FoundCheckpoint] = Schema(
    name="checkpoints",
    meaning="a folder that is a checkpoint, or was to become one",
    columns=(
        Column("step", _INTEGER, "after which it was saved", lambda found: found.step),
        Column("name", _TEXT, "of the folder", lambda found: found.name),
        Column(
            "bytes", _INTEGER, "of its files; NULL if it is not complete",
            lambda found: found.manifest.size_bytes if found.manifest else None,
        ),
        Column("complete", _BOOLEAN, "whether every file is there with its size", lambda found: found.is_complete),
        Column("error", _TEXT, "why not; NULL if it is", lambda found: str(found.error) if found.error else None),
    ),
)  # fmt: skip

STORAGE: Schema[tuple[Storage, StoredCheckpoint]] = Schema(
    name="storage",
    meaning="a checkpoint for as long as it was kept, which is paid for beside devices",
    columns=(
        Column("step", _INTEGER, "after which it was saved", lambda found: found[1].step),
        Column("bytes", ColumnType.BIG_INTEGER, "of its files", lambda found: found[1].size_bytes),
        Column(
            "saved", _TEXT, "when it was durable, by the wall clock: `2026-11-30T12:00:00Z`",
            lambda found: moment_of(found[1].saved_unix_ns),
        ),
        Column(
            "gone", _TEXT, "when it was removed; NULL if it is there",
            lambda found: None if found[1].gone_unix_ns is None else moment_of(found[1].gone_unix_ns),
        ),
        Column(
            "gb_months", _REAL, "10^9 bytes and 730 hours, until now if it is there",
            lambda found: found[0].gb_months_of(found[1]),
        ),
        Column("usd", _REAL, "dollars for it; NULL without a price", lambda found: found[0].usd_of(found[1])),
    ),
)  # fmt: skip

RUN_SCHEMAS: tuple[Schema[Any], ...] = (
    STEPS,
    LAPS,
    LEDGER,
    EVENTS,
    ATTEMPTS,
    RECOVERIES,
    CHECKPOINTS,
    STORAGE,
)
"""What every run has, in order."""


def run_relations(
    records: RunRecords, checkpoints: Iterable[FoundCheckpoint], storage: Storage | None = None
) -> tuple[Relation, ...]:
    """Every relation of a run; their rows are made when they are asked for.

    Making rows raises JournalError or AccountError, as ``account`` does, if a journal does not hold what it must.

    Args:
        records: Of a run that is over, or in progress.
        checkpoints: What is in its folder of checkpoints.
        storage: What they have taken up until now; None where that is not asked for.
    """
    return (
        STEPS.filled(lambda: _committed(records)),
        LAPS.filled(lambda: _rank_laps(records)),
        LEDGER.filled(lambda: _spent(records)),
        EVENTS.filled(lambda: sorted(_told(records), key=lambda told: (told.attempt, told.event.t_ns))),
        ATTEMPTS.filled(lambda: _tried(records)),
        RECOVERIES.filled(lambda: enumerate(recoveries_of(records), start=1)),
        CHECKPOINTS.filled(lambda: checkpoints),
        STORAGE.filled(
            lambda: [(storage, checkpoint) for checkpoint in storage.checkpoints] if storage else []
        ),
    )


def _committed(records: RunRecords) -> Iterator[Committed]:
    series = {metric: {point.step: point for point in default_series(records, metric)} for metric in Metric}
    began = _beginnings(records)
    durations = _durations(records)
    for step, point in series[Metric.LOSS].items():
        points = {metric: series[metric].get(step) for metric in Metric}
        attempt = max(1, point.attempt)  # A run without an agent's journal has one.
        yield Committed(
            point=point,
            attempt=attempt,
            began_ns=began[attempt],
            metrics={metric: found.value if found else None for metric, found in points.items()},
            nonfinite={
                metric: found.nonfinite for metric, found in points.items() if found and found.nonfinite
            },
            duration_ns=durations.get((attempt, step)),
        )


def _durations(records: RunRecords) -> Mapping[tuple[int, int], int]:
    """By attempt and step, from the first start to the last end of the laps in which the step was done last."""
    newest: dict[tuple[int, int], dict[int, Lap]] = {}
    for found in _rank_laps(records):
        if not found.lap.is_aborted:
            newest.setdefault((found.attempt, found.lap.step), {})[found.incarnation.rank] = found.lap
    spans = {}
    for key, by_rank in newest.items():
        epoch = max(lap.epoch for lap in by_rank.values())
        laps = [lap for lap in by_rank.values() if lap.epoch == epoch]
        spans[key] = max(lap.end_ns for lap in laps) - min(lap.start_ns for lap in laps)
    return spans


def _rank_laps(records: RunRecords) -> Iterator[RankLap]:
    attempt_of = _attempt_of_each_process(records)
    for incarnation, journal in records.ranks.items():
        for lap in laps_of(journal):
            yield RankLap(attempt=attempt_of[incarnation], incarnation=incarnation, lap=lap)


def _attempt_of_each_process(records: RunRecords) -> Mapping[Incarnation, int]:
    """Counted from 1; a process that no agent speaks of belongs to the last attempt, or to the only one."""
    attempts = attempts_of(records)
    found = dict.fromkeys(records.ranks, max(1, len(attempts)))
    for number, attempt in enumerate(attempts, start=1):
        found |= {process.incarnation: number for process in attempt.processes}
    return found


def _beginnings(records: RunRecords) -> Mapping[int, int]:
    """The first moment that any journal of an attempt tells of, by attempt."""
    found: dict[int, int] = {}
    for attempt, event, _ in _all_events(records):
        found[attempt] = min(event.t_ns, found.get(attempt, event.t_ns))
    return found


def _all_events(records: RunRecords) -> Iterator[tuple[int, Event, Incarnation | None]]:
    attempt_of = _attempt_of_each_process(records)
    for number, journal in enumerate(records.agents, start=1):
        for event in journal:
            yield number, event, None
    for incarnation, journal in records.ranks.items():
        for event in journal:
            yield attempt_of[incarnation], event, incarnation


def _told(records: RunRecords) -> Iterator[Told]:
    began = _beginnings(records)
    for attempt, event, incarnation in _all_events(records):
        yield Told(event=event, attempt=attempt, began_ns=began[attempt], incarnation=incarnation)


def _spent(records: RunRecords) -> Iterator[Spent]:
    attempts = attempts_of(records)
    for time in account(records).devices:
        processes = attempts[time.attempt].processes
        ranks = [process.incarnation.rank for process in processes if process.device == time.device]
        for (label, ledger_class), ns in time.amounts.items():
            yield Spent(
                time=time, rank=ranks[0] if ranks else None, label=label, ledger_class=ledger_class, ns=ns
            )


def _tried(records: RunRecords) -> Iterator[Tried]:
    commits: dict[int, list[int]] = {}
    for number, event in progress(records, (EventKind.COMMIT,)):
        commits.setdefault(number, []).append(event.integer("step"))
    for number, attempt in enumerate(attempts_of(records), start=1):
        yield Tried(number=number, attempt=attempt, steps=commits.get(number, ()))


def _integer(event: Event, field: str) -> int | None:
    value = event.fields.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _named(nonfinite: Mapping[Metric, str]) -> str | None:
    return ", ".join(f"{metric.value} {word}" for metric, word in nonfinite.items()) or None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / _NS_PER_S


def _since(t_ns: int, began_ns: int) -> float:
    return (t_ns - began_ns) / _NS_PER_S
