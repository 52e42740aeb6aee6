"""Lists of ranks and nodes, read back from their short form."""

from collections.abc import Iterator


def members(ranges: str) -> tuple[int, ...]:
    """The numbers of a list in short, in order.

    >>> members("0-3, 8"), members("0-24 step 8"), members("")
    ((0, 1, 2, 3, 8), (0, 8, 16, 24), ())
    """
    return tuple(number for part in ranges.split(", ") if part for number in _run(part))


def _run(part: str) -> Iterator[int]:
    bounds, _, step = part.partition(" step ")
    first, _, last = bounds.partition("-")
    yield from range(int(first), int(last or first) + 1, int(step or 1))
