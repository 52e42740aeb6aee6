"""The best of several places for one job in one table: time, dollars, hours to the end, and which is cheapest by how much."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from trimtab.app.plan_answers import Answer
from trimtab.app.plan_search import Strategy
from trimtab.cost.estimates import Interval
from trimtab.cost.search import QUANTILE, Objective, log_spread_between
from trimtab.terms import format_seconds

_TRILLION = 1e12
_S_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Dollars of a place over those of the cheapest.

    Args:
        expected: What both are expected to cost.
        low, high: Nine of ten lie between; what both depend on alike cancels, the price of a device and hour is taken as given.
    """

    low: float
    expected: float
    high: float

    @property
    def is_equal(self) -> bool:
        """Whether nobody can say which is cheaper."""
        return self.low <= 1 <= self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The best strategy at one place.

    Args:
        answer: What was found there.
        strategy: Its first.
        step_s: Of one step.
        usd_per_step: Of all devices; None without a price.
        beside_cheapest: None without a price.
    """

    answer: Answer
    strategy: Strategy
    step_s: Interval
    usd_per_step: Interval | None
    beside_cheapest: Ratio | None = None

    @property
    def devices(self) -> int:
        """That the strategy takes."""
        return self.strategy.candidate.layout.devices

    @property
    def usd_per_trillion(self) -> Interval | None:
        """Dollars for 10^12 tokens."""
        tokens = self.answer.question.batch * self.answer.question.sequence
        return self.usd_per_step.times(_TRILLION / tokens) if self.usd_per_step else None

    @property
    def hours(self) -> Interval | None:
        """To the last step; None where their number is not known."""
        steps = self.answer.loaded.job.train.steps
        return None if steps is None else self.step_s.times(steps / _S_PER_HOUR)

    @property
    def usd(self) -> Interval | None:
        """Of all steps."""
        steps = self.answer.loaded.job.train.steps
        return None if steps is None or self.usd_per_step is None else self.usd_per_step.times(steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySide:
    """Several places for one job.

    Args:
        rows: Where something keeps every limit, the cheapest first; those without a price at the end.
        nothing_fits: Names of the other places.
        objective: By which the best strategy of each was chosen.
    """

    rows: tuple[Row, ...]
    nothing_fits: tuple[str, ...]
    objective: Objective

    def document(self, *, day: date) -> dict[str, Any]:
        """As JSON can hold it; prices have their warnings by that day."""
        priced = [row for row in self.rows if row.usd_per_step is not None]
        return {
            "best_by": self.objective.value,
            "cheapest": priced[0].answer.place if priced else None,
            "rows": [_row_document(row, day) for row in self.rows],
            "nothing_fits": list(self.nothing_fits),
        }


def side_by_side(answers: Sequence[Answer], objective: Objective) -> SideBySide:
    """The best of each answer, the cheapest first.

    Args:
        answers: Of the same job, one a place.
        objective: By which each was asked for its best.
    """
    rows = sorted(
        (_row(answer, answer.strategies[0]) for answer in answers if answer.strategies),
        key=lambda row: math.inf if row.usd_per_step is None else row.usd_per_step.expected,
    )
    return SideBySide(
        rows=tuple(_beside(row, rows[0]) for row in rows),
        nothing_fits=tuple(answer.place for answer in answers if not answer.strategies),
        objective=objective,
    )


def side_by_side_lines(found: SideBySide, *, day: date) -> Iterator[str]:
    """For people."""
    by = {Objective.TIME: "the fastest", Objective.DOLLARS: "the cheapest"}[found.objective]
    yield ""
    yield f"side by side, {by} of each place"
    table = [_TITLES, *(_cells(row, day) for row in found.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        first, *figures, last = cells
        padded = (figure.rjust(width) for figure, width in zip(figures, widths[1:-1], strict=True))
        yield "  " + "  ".join((first.ljust(widths[0]), *padded, last)).rstrip()
    for place in found.nothing_fits:
        yield f"  {place}: nothing keeps every limit"
    yield from (f"  {line}" for line in _verdict(found))


_TITLES = (
    "place",
    "devices",
    "step",
    "$ a step",
    "$ a trillion tokens",
    "hours to the end",
    "$ to the end",
    "$ a device and hour",
)


def _row(answer: Answer, strategy: Strategy) -> Row:
    step = Interval(low=strategy.low_s, expected=strategy.step_s, high=strategy.high_s)
    usd = None
    if answer.price is not None:
        devices = strategy.candidate.layout.devices
        usd = step.times(answer.price.usd_per_device_hour * devices / _S_PER_HOUR)
    return Row(answer=answer, strategy=strategy, step_s=step, usd_per_step=usd)


def _beside(row: Row, cheapest: Row) -> Row:
    mine, least = row.usd_per_step, cheapest.usd_per_step
    if mine is None or least is None or not least.expected:
        return row
    spread = _log_spread(row, cheapest)
    ratio = mine.expected / least.expected
    return Row(
        answer=row.answer,
        strategy=row.strategy,
        step_s=row.step_s,
        usd_per_step=row.usd_per_step,
        beside_cheapest=Ratio(
            low=ratio * math.exp(-QUANTILE * spread),
            expected=ratio,
            high=ratio * math.exp(QUANTILE * spread),
        ),
    )


def _log_spread(one: Row, other: Row) -> float:
    """Standard deviation of the logarithm of the ratio of their step times."""
    if one.answer.stack != other.answer.stack:  # constants that were learned elsewhere have nothing in common
        apart = (math.log(row.step_s.high / row.step_s.expected) / QUANTILE for row in (one, other))
        return math.hypot(*apart)
    return log_spread_between(
        (one.answer.question, one.strategy.candidate.layout),
        (other.answer.question, other.strategy.candidate.layout),
        time=one.answer.time,
    )


def _cells(row: Row, day: date) -> tuple[str, ...]:
    step = f"{format_seconds(row.step_s.expected)} ({format_seconds(row.step_s.low)} to {format_seconds(row.step_s.high)})"
    return (
        row.answer.place,
        f"{row.devices:,}",
        step,
        _figure(row.usd_per_step, 4),
        _figure(row.usd_per_trillion, 0),
        _figure(row.hours, 1),
        _figure(row.usd, 0),
        _price(row.answer, day),
    )


def _figure(found: Interval | None, digits: int) -> str:
    return "-" if found is None else f"{found.expected:,.{digits}f}"


def _price(answer: Answer, day: date) -> str:
    if answer.price is None:
        return "no price known"
    old = "; old, see its warning" if answer.price.warning(day) else ""
    return f"{answer.price.usd_per_device_hour:.2f}, {answer.price.source}{old}"


def _verdict(found: SideBySide) -> Iterator[str]:
    priced = [row for row in found.rows if row.beside_cheapest is not None]
    if len(priced) < 2:
        return
    first = priced[0]
    yield f"cheapest: {first.answer.place}"
    for row in priced[1:]:
        ratio = row.beside_cheapest
        assert ratio is not None, "only priced rows are here"
        said = f"{ratio.expected:.2f} times as much ({ratio.low:.2f} to {ratio.high:.2f})"
        unknown = ": nobody can say which is cheaper" if ratio.is_equal else ""
        yield f"  {row.answer.place} costs {said}{unknown}"


def _row_document(row: Row, day: date) -> dict[str, Any]:
    price, ratio = row.answer.price, row.beside_cheapest
    return {
        "place": row.answer.place,
        "cluster": row.answer.cluster.name,
        "providers": sorted({offer.provider for offer in price.offers}) if price else [],
        "devices": row.devices,
        "step_s": _interval(row.step_s),
        "usd_per_step": _interval(row.usd_per_step),
        "usd_per_trillion_tokens": _interval(row.usd_per_trillion),
        "hours": _interval(row.hours),
        "usd": _interval(row.usd),
        "usd_per_device_hour": price.usd_per_device_hour if price else None,
        "price_source": price.source if price else "",
        "price_as_of": min((offer.as_of for offer in price.offers), default="") if price else "",
        "price_warning": price.warning(day) if price else "",
        "beside_cheapest": None
        if ratio is None
        else {"ratio": ratio.expected, "low": ratio.low, "high": ratio.high, "is_equal": ratio.is_equal},
    }


def _interval(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else {"low": found.low, "expected": found.expected, "high": found.high}
