"""The account: every nanosecond of every device in exactly one class, with its dollars."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from math import fsum

from trimtab.ledger.events import Incarnation, Lap, RunRecords, laps_of
from trimtab.ledger.lost_work import LostWork, Part, rollbacks_of
from trimtab.ledger.splits import Collective, shortest_waits, split_lap, split_rest
from trimtab.ledger.timelines import Hold, holds_of
from trimtab.terms import Clock, Layer, LedgerClass

_NS_PER_HOUR = 3600 * 10**9
_LOST_ALREADY = (Layer.STABILITY,)
_NOT_OF_A_STEP = (Layer.STABILITY, Layer.DECISION)
"""An attempt at a step that was given up does not make the evaluation before it worthless."""


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
        """Dollars of every line of the ledger; None unless every device that was held has a price.

        Where no device was held it is zero, whatever one would have cost.
        """
        if any(device.price_usd_per_hour is None for device in self.devices):
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

    Work that was rolled back later, and attempts at a step whose shares were computed again, get the label
    ``lost_work``; what a process spent in the stability layer does not, being a loss under its own name
    already. The unfinished step of a process that died is lost only if a rollback followed.

    Raises:
        AccountError: a process or its clock ran outside the time for which its device was paid.
        JournalError: an event lacks what its kind must have.
    """
    laps = {incarnation: laps_of(journal) for incarnation, journal in records.ranks.items()}
    rollbacks = rollbacks_of(records)
    devices = []
    for attempt, group in groupby(holds_of(records), key=lambda hold: hold.attempt):
        holds = list(group)
        found = [lap for hold in holds for life in hold.lives for lap in laps.get(life.incarnation, ())]
        shortest, lost_work = shortest_waits(found), LostWork(attempt, found, rollbacks)
        devices += [_device_time(hold, laps, shortest=shortest, lost_work=lost_work) for hold in holds]
    return Account(devices=devices)


def _device_time(
    hold: Hold,
    laps: Mapping[Incarnation, Sequence[Lap]],
    *,
    shortest: Mapping[Collective, int],
    lost_work: LostWork,
) -> DeviceTime:
    amounts = Counter({(Label.KEPT, ledger_class): ns for ledger_class, ns in hold.outside.items()})
    for life in hold.lives:
        unrecorded = dict(life.totals)
        life_laps = laps.get(life.incarnation, ())
        for lap in life_laps:
            split = split_lap(
                lap,
                _take(unrecorded, lap.clocks),
                shortest=shortest,
                peak_flops_per_s=hold.peak_flops_per_s,
            )
            spared = _NOT_OF_A_STEP if lap.is_aborted else _LOST_ALREADY
            _add(amounts, split, lost_work.part_of(lap), spared=spared)
        part = lost_work.part_of_last_step(life, life_laps)
        _add(amounts, split_rest(unrecorded), part, spared=_LOST_ALREADY)
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
    amounts: Counter[tuple[Label, LedgerClass]],
    classes: Mapping[LedgerClass, int],
    part: Part,
    *,
    spared: Collection[Layer],
) -> None:
    """Add classes to the amounts, with ``part`` of what is not spared labelled as lost."""
    for ledger_class, ns in classes.items():
        lost_ns = 0 if ledger_class.layer in spared else ns * part.lost // part.whole
        amounts[Label.LOST_WORK, ledger_class] += lost_ns
        amounts[Label.KEPT, ledger_class] += ns - lost_ns
