"""Quantities as people write them, read into seconds and bytes and printed back.

Inside, everything is seconds, bytes, FLOPs and dollars; conversion happens once, where text is read or
printed. MB is 10^6 bytes, MiB is 2^20.
"""

import re

from trimtab.terms.errors import InputError

_BYTES = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


def parse_bytes(text: str) -> int:
    """Bytes from text such as ``25MB`` or ``1.5 GiB``.

    >>> parse_bytes("25MB"), parse_bytes("1 MiB")
    (25000000, 1048576)

    Raises: InputError if there is no number, no unit, or an unknown unit.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].upper() not in _BYTES:
        raise InputError(
            f"{text!r} is not a size; write a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"
        )
    return round(float(match[1]) * _BYTES[match[2].upper()])


def parse_seconds(text: str) -> float:
    """Seconds from text such as ``250ms`` or ``1.5 h``.

    >>> parse_seconds("250ms"), parse_seconds("2min")
    (0.25, 120.0)

    Raises: InputError if there is no number, no unit, or an unknown unit.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _SECONDS:
        raise InputError(f"{text!r} is not a duration; write a number and one of {', '.join(_SECONDS)}")
    return float(match[1]) * _SECONDS[match[2]]


def format_bytes(count: float) -> str:
    """A size for people, in decimal units.

    >>> format_bytes(14_200_000_000), format_bytes(512)
    ('14.2 GB', '512 B')
    """
    for unit in ("B", "KB", "MB", "GB", "TB", "PB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} EB"


def format_seconds(seconds: float) -> str:
    """A duration for people.

    >>> format_seconds(0.0042), format_seconds(75.0), format_seconds(7300)
    ('4.20 ms', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
