"""Figures of an explanation as people read them."""

import math
from collections.abc import Iterable

from trimtab.app.pages.facts import Facts
from trimtab.terms import format_bytes

UNKNOWN = "–"
"""Stands where a figure is not known."""


def count(number: float) -> str:
    """A whole number with its thousands apart."""
    return f"{round(number):,}"


def plural(number: int, noun: str, nouns: str = "") -> str:
    """A number with its noun; ``nouns`` where an s does not make it many.

    >>> plural(1, "rank"), plural(512, "rank"), plural(2, "microbatch", "microbatches")
    ('1 rank', '512 ranks', '2 microbatches')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def percent(share: float) -> str:
    """A share of 1 in per cent.

    >>> percent(0.105), percent(0.00012), percent(1e-9)
    ('10.5 %', '0.012 %', '< 0.01 %')
    """
    shown = 100 * share
    if 0 < shown < 0.01:
        return "< 0.01 %"
    return f"{shown:.1f} %" if shown >= 1 or not shown else f"{shown:.2g} %"


def change(before: float, after: float) -> str:
    """How much more or less one figure is than another.

    >>> change(200, 207), change(200, 150), change(200, 600), change(0, 5), change(5, 0)
    ('+3.5 %', '-25.0 %', '3.0 times', 'new', 'gone')
    """
    if not before or not after:
        return "new" if after else "gone"
    if after >= 2 * before:
        return f"{after / before:,.1f} times"
    return f"{100 * (after / before - 1):+.1f} %"


def dollars(usd: float) -> str:
    """Dollars: cents from one dollar on, three digits below.

    >>> dollars(3719.8584), dollars(0.000049020598)
    ('$3,719.86', '$0.0000490')
    """
    if usd >= 1 or usd == 0:
        return f"${usd:,.2f}"
    return f"${usd:.{2 - math.floor(math.log10(usd))}f}"


def runs(per_step: float) -> str:
    """How often something happens in a step.

    >>> runs(512.0), runs(1 / 64)
    ('512', 'every 64 steps')
    """
    return count(per_step) if per_step >= 1 else f"every {round(1 / per_step)} steps"


def axes(sizes: Iterable[Facts]) -> str:
    """Axes of a mesh with their sizes.

    >>> axes([{"axis": "dp", "size": 8}, {"axis": "tp", "size": 4}])
    'dp 8 × tp 4'
    """
    return " × ".join(f"{axis['axis']} {axis['size']}" for axis in sizes)


def level_bytes(sent: Facts) -> str:
    """Bytes by the level of link that they cross; a level without any is left out."""
    parts = [f"{format_bytes(size)} {LEVELS[level]}" for level, size in sent.items() if size]
    return " and ".join(parts) or "nothing"


LEVELS = {"node": "inside nodes", "site": "between nodes"}
"""What a level of links joins."""
