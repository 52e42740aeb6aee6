"""The account: every nanosecond of every device in exactly one class, with its dollars."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from math import fsum

from trimtab.ledger.events import EventKind, Incarnation, Lap, RunRecords, laps_of
from trimtab.ledger.splits import Collective, shortest_waits, split_lap, split_rest
from trimtab.ledger.timelines import Hold, Life, holds_of
from trimtab.terms import Clock, Layer, LedgerClass

_NS_PER_HOUR = 3600 * 10**9


class Label(StrEnum):
    """What became of time after it was spent: the outer key, beside the class that says what it did."""

    KEPT = "kept"
    LOST_WORK = "lost_work"
    """Spent on steps that were rolled back or computed again."""


Entry = LedgerClass | Label
"""A line of the ledger: a class of kept time, or ``Label.LOST_WORK``, whatever that time did."""

ENTRIES: tuple[Entry, ...] = (*LedgerClass, Label.LOST_WORK)
"""Every line of the ledger, exclusive: together they are the allocated time."""


def layer_of(entry: Entry) -> Layer:
    """The layer that a line of the ledger belongs to; lost work is a loss of stability."""
    return entry.layer if isinstance(entry, LedgerClass) else Layer.STABILITY


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceTime:
    """One device in one attempt, from allocation to release."""

    attempt: int
    """Position of the attempt among the run's attempts, from 0."""
    device: str
    allocated_ns: int
    price_usd_per_hour: float | None
    amounts: Mapping[tuple[Label, LedgerClass], int]
    """ns by label and class; they add up to allocated_ns."""

    def __post_init__(self) -> None:
        total_ns = sum(self.amounts.values())
        assert total_ns == self.allocated_ns, f"{self.device}: {total_ns} ns stand for {self.allocated_ns}"

    def entry_ns(self, entry: Entry) -> int:
        """The time of one line of the ledger, ns."""
        if isinstance(entry, LedgerClass):
            return self.amounts.get((Label.KEPT, entry), 0)
        return sum(ns for (label, _), ns in self.amounts.items() if label is entry)


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Where a run's device time and dollars went.

    ``entries`` is exclusive and exact: its values add up to ``allocated_ns``. ``classes`` says what the same
    time did, whether it was kept or not. Dollars are floats: each device's own price over its own time.
    """

    devices: Sequence[DeviceTime]

    @property
    def allocated_ns(self) -> int:
        """Device time from allocation to release, summed over devices and attempts, ns."""
        return sum(device.allocated_ns for device in self.devices)

    def entries(self) -> dict[Entry, int]:
        """Ns of every line of the ledger, those of zero included."""
        return {entry: sum(device.entry_ns(entry) for device in self.devices) for entry in ENTRIES}

    def classes(self, *labels: Label) -> dict[LedgerClass, int]:
        """What the time under the given labels did (all labels when none is given), ns of every class."""
        sums = Counter[LedgerClass]()
        for device in self.devices:
            for (label, ledger_class), ns in device.amounts.items():
                sums[ledger_class] += ns if not labels or label in labels else 0
        return {ledger_class: sums[ledger_class] for ledger_class in LedgerClass}

    def layers(self) -> dict[Layer, int]:
        """Ns of every layer; lost work counts in stability, whatever it did."""
        sums = dict.fromkeys(Layer, 0)
        for entry, ns in self.entries().items():
            sums[layer_of(entry)] += ns
        return sums

    @property
    def unattributed_fraction(self) -> float:
        """The share of the allocated time that no timer claims, 0 to 1."""
        return self.entries()[LedgerClass.UNATTRIBUTED] / self.allocated_ns if self.allocated_ns else 0.0

    @property
    def cost_usd(self) -> float | None:
        """Dollars for the allocated time; None unless every device that was held has a price."""
        costs = self.dollars()
        return None if costs is None else fsum(costs.values())

    def dollars(self) -> dict[Entry, float] | None:
        """Dollars of every line of the ledger; None unless every device that was held has a price."""
        prices = [device.price_usd_per_hour for device in self.devices]
        if not prices or None in prices:
            return None
        return {
            entry: fsum(
                device.price_usd_per_hour * device.entry_ns(entry) / _NS_PER_HOUR
                for device in self.devices
                if device.price_usd_per_hour is not None
            )
            for entry in ENTRIES
        }


def account(records: RunRecords) -> Account:
    """Put all time for which a run held devices into classes.

    Time that was rolled back later (``rollback`` events) or was given up (``aborted`` events) gets the label
    ``lost_work``, except for what its process spent in the stability layer, which is a loss under its own
    name already. The unfinished step of a process that died is lost only if a rollback followed.

    Raises:
        AccountError: a process or its clock ran outside the time for which its device was paid.
        JournalError: an event lacks what its kind must have.
    """
    laps = {incarnation: laps_of(journal) for incarnation, journal in records.ranks.items()}
    rollbacks = list(_rollbacks(records))
    devices = []
    for _, group in groupby(holds_of(records), key=lambda hold: hold.attempt):
        holds = list(group)
        shortest = shortest_waits(
            lap for hold in holds for life in hold.lives for lap in laps.get(life.incarnation, ())
        )
        devices += [_device_time(hold, laps, shortest=shortest, rollbacks=rollbacks) for hold in holds]
    return Account(devices=devices)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rollback:
    """All work after step ``to_step`` that was done before this moment is lost."""

    attempt: int
    t_ns: int
    to_step: int

    def follows(self, attempt: int, t_ns: int) -> bool:
        """Whether a moment of an attempt lies before; times of different attempts need not be comparable."""
        return attempt < self.attempt or (attempt == self.attempt and t_ns <= self.t_ns)


def _rollbacks(records: RunRecords) -> Iterator[_Rollback]:
    for attempt, journal in enumerate(records.agents):
        for event in journal:
            if event.kind == EventKind.ROLLBACK:
                yield _Rollback(attempt=attempt, t_ns=event.t_ns, to_step=event.integer("to_step"))


def _device_time(
    hold: Hold,
    laps: Mapping[Incarnation, Sequence[Lap]],
    *,
    shortest: Mapping[Collective, int],
    rollbacks: Sequence[_Rollback],
) -> DeviceTime:
    amounts = Counter({(Label.KEPT, ledger_class): ns for ledger_class, ns in hold.outside.items()})
    for life in hold.lives:
        unrecorded = dict(life.totals)
        life_laps = laps.get(life.incarnation, ())
        for lap in life_laps:
            split = split_lap(
                lap, _take(unrecorded, lap.clocks), shortest=shortest, peak_flops_per_s=hold.peak_flops_per_s
            )
            _add(amounts, split, is_lost=_is_lap_lost(lap, hold.attempt, rollbacks))
        is_lost = _is_last_step_lost(life, life_laps, hold.attempt, rollbacks)
        _add(amounts, split_rest(unrecorded), is_lost=is_lost)
    return DeviceTime(
        attempt=hold.attempt,
        device=hold.device,
        allocated_ns=hold.end_ns - hold.start_ns,
        price_usd_per_hour=hold.price_usd_per_hour,
        amounts={key: ns for key, ns in amounts.items() if ns},
    )


def _take(unrecorded: dict[Clock, int], claimed: Mapping[Clock, int]) -> dict[Clock, int]:
    """Move what a lap claims out of ``unrecorded``, but never more than the clocks measured."""
    taken = {clock: min(ns, unrecorded[clock]) for clock, ns in claimed.items()}
    for clock, ns in taken.items():
        unrecorded[clock] -= ns
    return taken


def _add(
    amounts: Counter[tuple[Label, LedgerClass]], classes: Mapping[LedgerClass, int], *, is_lost: bool
) -> None:
    for ledger_class, ns in classes.items():
        is_work = ledger_class.layer is not Layer.STABILITY
        amounts[Label.LOST_WORK if is_lost and is_work else Label.KEPT, ledger_class] += ns


def _is_lap_lost(lap: Lap, attempt: int, rollbacks: Sequence[_Rollback]) -> bool:
    return lap.is_aborted or any(
        lap.step > rollback.to_step and rollback.follows(attempt, lap.end_ns) for rollback in rollbacks
    )


def _is_last_step_lost(life: Life, laps: Sequence[Lap], attempt: int, rollbacks: Sequence[_Rollback]) -> bool:
    """Whether the time after a process's last lap went into a step that was never finished and rolled back."""
    last_step = laps[-1].step if laps else None
    return not life.is_clean and any(
        (last_step is None or last_step >= rollback.to_step) and rollback.follows(attempt, life.ended_ns)
        for rollback in rollbacks
    )
