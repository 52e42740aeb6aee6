"""Numbers in short: runs of neighbours, and of numbers with equal steps."""

from collections.abc import Iterable, Sequence

_LEAST = 3
"""Fewest numbers with a step above 1 that are written as a run; two are shorter one by one."""


def ranges(numbers: Iterable[int]) -> str:
    """The numbers in order, each run once.

    >>> ranges([0, 1, 2, 3, 8]), ranges([0, 8, 16, 24]), ranges([5, 3]), ranges([])
    ('0-3, 8', '0-24 step 8', '3, 5', '')
    """
    ordered = sorted(numbers)
    written, start = [], 0
    while start < len(ordered):
        end, step = _run(ordered, start)
        written.append(_written(ordered[start], ordered[end], step))
        start = end + 1
    return ", ".join(written)


def _run(ordered: Sequence[int], start: int) -> tuple[int, int]:
    """The index of the last number of the run that begins at ``start``, and its step."""
    if start + 1 == len(ordered):
        return start, 1
    step = ordered[start + 1] - ordered[start]
    end = start + 1
    while end + 1 < len(ordered) and ordered[end + 1] - ordered[end] == step:
        end += 1
    if step > 1 and end - start + 1 < _LEAST:
        return start, 1
    return end, step


def _written(first: int, last: int, step: int) -> str:
    if first == last:
        return str(first)
    return f"{first}-{last}" if step == 1 else f"{first}-{last} step {step}"
