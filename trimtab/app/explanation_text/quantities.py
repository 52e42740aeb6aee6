"""Figures as people read them."""

from trimtab.cost.estimates import Interval
from trimtab.cost.flops import Flops
from trimtab.cost.memory import Moment
from trimtab.plan.explanation import LevelBytes
from trimtab.terms import format_bytes, format_seconds

_LARGE = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
_COUNTS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def flops(count: float) -> str:
    """FLOPs with a decimal prefix.

    >>> flops(21_172_581_283_280_191_488), flops(20_060_160), flops(12)
    ('21.2 EFLOPs', '20.1 MFLOPs', '12 FLOPs')
    """
    for unit, prefix in _LARGE:
        if count >= unit:
            return f"{count / unit:.3g} {prefix}FLOPs"
    return f"{count:g} FLOPs"


def both_flops(found: Flops) -> str:
    """A count under both conventions."""
    return f"{flops(found.causal)} (causal), {flops(found.full)} (full)"


def elements(count: int) -> str:
    """A number of parameters.

    >>> elements(405_853_388_800), elements(3_356_160), elements(896)
    ('406 billion', '3.36 million', '896')
    """
    for unit, name in _COUNTS:
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return str(count)


def times(count: float) -> str:
    """How often in a step, before a size.

    >>> times(1024), times(1), times(1 / 64)
    ('1,024 x', '1 x', 'every 64 steps')
    """
    return f"every {round(1 / count)} steps" if count < 1 else f"{count:,.0f} x"


def seconds(found: Interval) -> str:
    """A duration with its interval."""
    return f"{format_seconds(found.expected)} ({format_seconds(found.low)} to {format_seconds(found.high)})"


def dollars(found: Interval) -> str:
    """Dollars with their interval."""
    return f"${_usd(found.expected)} ({_usd(found.low)} to {_usd(found.high)})"


def moment(found: Moment) -> str:
    """A part of the step."""
    return found.value if found is Moment.UPDATE else f"{found.value} pass"


def share(part: float) -> str:
    """A part of a whole.

    >>> share(0.1651)
    '16.5 %'
    """
    return f"{100 * part:.1f} %"


def levels(found: LevelBytes) -> str:
    """Bytes by the level of the link.

    >>> levels(LevelBytes(100, 0)), levels(LevelBytes(0, 2000)), levels(LevelBytes())
    ('100 B in nodes', '2 KB between nodes', 'nothing')
    """
    parts = []
    if found.node:
        parts.append(f"{format_bytes(found.node)} in nodes")
    if found.site:
        parts.append(f"{format_bytes(found.site)} between nodes")
    return ", ".join(parts) or "nothing"


def _usd(value: float) -> str:
    if value < 0.01:
        return f"{value:.5f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def counted(count: int, noun: str, plural: str = "s") -> str:
    """A number of things.

    >>> counted(1, "sample"), counted(4096, "sample"), counted(2, "microbatch", "es")
    ('1 sample', '4,096 samples', '2 microbatches')
    """
    return f"{count:,} {noun}{'' if count == 1 else plural}"
