"""What a trial may vary: ranges, lists of numbers and lists of names, and how far apart two trials are."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Value = float | int | str
"""Of a knob; whole numbers stay whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Any number from the lowest to the highest.

    Args:
        low: At most ``high``; above 0 if ``is_log``.
        high: The highest.
        is_log: Whether factors count, and not differences.
        is_whole: Whether only whole numbers are meant.
    """

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False

    def place(self, value: Value) -> float:
        """From 0 at the lowest to 1 at the highest."""
        return _share(float(value), self.low, self.high, is_log=self.is_log)

    def distance(self, first: Value, second: Value) -> float:
        """From 0 to 1."""
        return abs(self.place(first) - self.place(second))

    def nearest(self, value: float) -> Value:
        """As a trial gets it: whole if only these are meant, else to six digits, which people can read."""
        return round(value) if self.is_whole else float(f"{value:.6g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbers:
    """One of some numbers, in order; neighbours are alike.

    Args:
        values: At least one, ascending.
    """

    values: tuple[float | int, ...]

    @property
    def is_log(self) -> bool:
        """Whether factors count: the numbers are above 0 and the greatest is three times the least."""
        return self.values[0] > 0 and self.values[-1] >= 3 * self.values[0]

    def place(self, value: Value) -> float:
        """From 0 at the least to 1 at the greatest."""
        return _share(float(value), self.values[0], self.values[-1], is_log=self.is_log)

    def nearest(self, value: float) -> Value:
        """The number that stands nearest."""
        return min(self.values, key=lambda number: self.distance(number, value))

    def distance(self, first: Value, second: Value) -> float:
        """From 0 to 1."""
        return abs(self.place(first) - self.place(second))


@dataclass(frozen=True, kw_only=True, slots=True)
class Category:
    """One of some names, of which none is nearer to another.

    Args:
        values: At least one.
    """

    values: tuple[str, ...]

    def distance(self, first: Value, second: Value) -> float:
        """0 or 1."""
        return float(first != second)


Knob = Range | Numbers | Category


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """All that trials may be.

    Args:
        knobs: By name, at least one.
        seeds: Trials to begin with, in this order, whatever is learned.
    """

    knobs: Mapping[str, Knob]
    seeds: Sequence[Mapping[str, Value]] = ()

    @property
    def num_points(self) -> int | None:
        """How many different trials there are; None if some knob takes any number of a range."""
        counts = [_count(knob) for knob in self.knobs.values()]
        return None if None in counts else math.prod(count for count in counts if count is not None)

    def points(self) -> Iterator[dict[str, Value]]:
        """Every trial of a space whose knobs take lists."""
        lists = [_values(knob) for knob in self.knobs.values()]
        for values in itertools.product(*lists):
            yield dict(zip(self.knobs, values, strict=True))

    def distance(self, first: Mapping[str, Value], second: Mapping[str, Value]) -> float:
        """Euclid's, each knob counting from 0 to 1."""
        return math.sqrt(
            sum(knob.distance(first[name], second[name]) ** 2 for name, knob in self.knobs.items())
        )


def _share(value: float, low: float, high: float, *, is_log: bool) -> float:
    if low == high:
        return 0.0
    if is_log:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _count(knob: Knob) -> int | None:
    if isinstance(knob, Range):
        return int(knob.high) - int(knob.low) + 1 if knob.is_whole else None
    return len(knob.values)


def _values(knob: Knob) -> Sequence[Value]:
    if isinstance(knob, Range):
        return range(int(knob.low), int(knob.high) + 1)
    return knob.values
