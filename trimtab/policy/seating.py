"""Which of the ranks that live take part, and at which position of the layout?

Who keeps its position need not move its state. So copies of the state that are whole stay whole, what is left of broken
ones fills the gaps, and whoever finds no position is a spare.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Units = tuple[tuple[int, ...], ...]
"""Positions that hold one copy of the state together, by copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seating:
    """The layouts that a run may have.

    Args:
        layouts: By their units, that of most positions first; empty if any number of ranks is one, each whole by itself.
        most: The most ranks that take part; None for no limit but the layouts'.
    """

    layouts: tuple[Units, ...] = ()
    most: int | None = None

    def fewest(self) -> int:
        """Without so many ranks nothing can go on."""
        return num_positions(self.layouts[-1]) if self.layouts else 1

    def num_seats(self, living: int) -> int:
        """How many of so many living ranks take part; 0 if they are too few.

        >>> Seating(layouts=(((0, 1), (2, 3)), ((0, 1),)), most=None).num_seats(3)
        2
        """
        units = self._layout(living)
        return 0 if units is None else num_positions(units)

    def seat(self, living: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
        """The ranks that take part, by position; empty if they are too few.

        Args:
            living: Ranks that could take part.
            before: Who took part before, by position.

        >>> hsdp = Seating(layouts=(((0, 1), (2, 3)), ((0, 1),)))
        >>> hsdp.seat([1, 2, 3], before=[0, 1, 2, 3]), hsdp.seat([0, 1, 2, 3], before=[0, 1, 2, 4])
        ((2, 3), (0, 1, 2, 3))
        """
        units = self._layout(len(living))
        if units is None:
            return ()
        veterans = [rank for rank in before if rank in living]
        if not self.layouts:
            return tuple(sorted([*dict.fromkeys((*veterans, *sorted(living)))][: len(units)]))
        old = next((known for known in self.layouts if num_positions(known) == len(before)), ())
        seats: dict[int, int] = {}
        for rank, position in _moves(units, old, living, before):
            if position not in seats and rank not in seats.values():
                seats[position] = rank
        waiting = [rank for rank in (*veterans, *sorted(living)) if rank not in seats.values()]
        free = [position for position in range(num_positions(units)) if position not in seats]
        seats |= zip(free, dict.fromkeys(waiting), strict=False)
        return tuple(seats[position] for position in range(num_positions(units)))

    def _layout(self, living: int) -> Units | None:
        most = living if self.most is None else min(living, self.most)
        if not self.layouts:
            return tuple((position,) for position in range(most)) or None
        return next((units for units in self.layouts if num_positions(units) <= most), None)


def num_positions(units: Units) -> int:
    """Of a layout."""
    return sum(len(unit) for unit in units)


def _moves(
    units: Units, old: Units, living: Sequence[int], before: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Ranks and the positions in which they keep what they hold, whole copies first."""
    if not old or {len(unit) for unit in old} != {len(unit) for unit in units}:
        return
    ranks = [[before[position] for position in unit] for unit in old]
    whole = [members for members in ranks if all(rank in living for rank in members)]
    broken = [members for members in ranks if members not in whole and any(r in living for r in members)]
    for members, unit in zip((*whole, *broken), units, strict=False):
        for rank, position in zip(members, unit, strict=True):
            if rank in living:
                yield rank, position
