"""Which activations of which layer are computed again, so that a rank has room and loses the least time. Exact."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to treat a layer.

    Args:
        seconds: That its backward passes take longer, for one microbatch.
        kept_bytes: Of all microbatches that its rank keeps at once.
    """

    seconds: float
    kept_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """Layers of one rank that have the same choice.

    Args:
        count: Of them.
        ways: To treat one of them.
    """

    count: int
    ways: tuple[Way, ...]


Chosen = tuple[tuple[int, ...], ...]
"""For each group of layers that are alike, how many of them are treated in each way."""


def least_time(groups: Sequence[Alike], room_bytes: int) -> tuple[float, Chosen] | None:
    """The choice with the least time that fits; None if none does.

    Layer by layer, every sum of bytes and seconds that no other beats in both is kept: dynamic programming whose states
    are exact, no bytes are rounded. What is beaten by now stays beaten, whatever the later layers do.

    >>> ways = (Way(seconds=0.0, kept_bytes=10), Way(seconds=1.0, kept_bytes=6), Way(seconds=3.0, kept_bytes=1))
    >>> least_time([Alike(count=3, ways=ways)], 17)
    (4.0, ((1, 1, 1),))
    >>> least_time([Alike(count=3, ways=ways)], 2) is None
    True
    """
    states: dict[int, tuple[float, Chosen]] = {0: (0.0, ())}
    for number, group in enumerate(groups):
        least_later = _least_bytes(groups[number + 1 :])
        ways = _unbeaten(group.ways)
        smallest = min(way.kept_bytes for _, way in ways)
        states = {
            size: (seconds, (*chosen, (0,) * len(group.ways))) for size, (seconds, chosen) in states.items()
        }
        for layer in range(group.count):
            room = room_bytes - least_later - (group.count - layer - 1) * smallest
            grown: dict[int, tuple[float, Chosen]] = {}
            for size, (seconds, chosen) in states.items():
                for index, way in ways:
                    held, took = size + way.kept_bytes, seconds + way.seconds
                    if held <= room and (held not in grown or took < grown[held][0]):
                        grown[held] = (took, (*chosen[:-1], _one_more(chosen[-1], index)))
            states = _front(grown)
    return min(states.values(), key=lambda state: state[0], default=None)


def _unbeaten(ways: Sequence[Way]) -> list[tuple[int, Way]]:
    """Those that no other beats in time and bytes, with their places."""
    return [
        (index, way)
        for index, way in enumerate(ways)
        if not any(
            (other.seconds, other.kept_bytes, place) < (way.seconds, way.kept_bytes, index)
            and other.kept_bytes <= way.kept_bytes
            for place, other in enumerate(ways)
        )
    ]


def _least_bytes(groups: Sequence[Alike]) -> int:
    return sum(group.count * min(way.kept_bytes for way in group.ways) for group in groups)


def _one_more(counts: tuple[int, ...], index: int) -> tuple[int, ...]:
    return (*counts[:index], counts[index] + 1, *counts[index + 1 :])


def _front(states: dict[int, tuple[float, Chosen]]) -> dict[int, tuple[float, Chosen]]:
    """By growing bytes, those that take less time than every smaller one."""
    kept: dict[int, tuple[float, Chosen]] = {}
    least = float("inf")
    for size in sorted(states):
        if states[size][0] < least:
            least = states[size][0]
            kept[size] = states[size]
    return kept
