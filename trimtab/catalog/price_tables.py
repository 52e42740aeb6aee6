"""A price table of the user's own: the columns of ``data/prices.csv``, every mistake named with line and column."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import NamedTuple, TypeVar

from trimtab.catalog.accelerators import accelerator_names
from trimtab.catalog.errors import PricesError
from trimtab.catalog.prices import Price, PriceKind
from trimtab.catalog.tables import csv_rows
from trimtab.terms import nearest_name

NEEDED = ("as_of", "provider", "accelerator", "usd_per_device_hour")
"""Columns that a table must have."""

COLUMNS = (*NEEDED, "kind", "devices_per_instance", "instance", "region", "source")
"""Columns that it may have, in any order; kind is on_demand where it does not say, source the file and its line."""

_T = TypeVar("_T")
_CELL = re.compile(r'\s*"(?:[^"]|"")*"\s*|[^",]*')
_DATE = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?")


class _Cell(NamedTuple):
    column: int
    """Of its first character, from 1."""
    text: str


class _MistakeError(Exception):
    """What is wrong with a cell."""


def read_prices(text: str, *, source: str) -> tuple[Price, ...]:
    """The offers of a table.

    Args:
        text: CSV with a header; fields in double quotes may hold commas, but no line break. Empty lines are passed over.
        source: Its name, for messages and for rows without a source.

    Raises: PricesError naming every mistake with its line and column, and the nearest name that there is.
    """
    problems: list[str] = []
    header: dict[str, int] | None = None
    offers: list[Price] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            cells = _cells(line)
        except _UnclosedError as error:
            problems.append(f"{source}:{number}:{error.column}  a double quote is not closed on this line")
            continue
        if header is None:
            header = _header(cells, f"{source}:{number}", problems)
        else:
            offers += _offer(cells, header, f"{source}:{number}", problems)
    if header is None:
        problems.append(f"{source}:1:1  no header; its columns are {', '.join(COLUMNS)}")
    elif not problems and not offers:
        problems.append(f"{source}:2:1  no offer follows the header")
    if problems:
        raise PricesError("\n".join(problems))
    return tuple(offers)


class _UnclosedError(Exception):
    def __init__(self, column: int) -> None:
        super().__init__(column)
        self.column = column


def _cells(line: str) -> list[_Cell]:
    cells, at = [], 0
    while True:
        match = _CELL.match(line, at)
        assert match is not None, "a cell may be empty"
        end = match.end()
        if end < len(line) and line[end] != ",":
            raise _UnclosedError(at + 1)
        text = match[0].strip()
        blank = len(match[0]) - len(match[0].lstrip()) if text else 0
        cells.append(_Cell(at + blank + 1, text[1:-1].replace('""', '"') if text.startswith('"') else text))
        if end == len(line):
            return cells
        at = end + 1


def _header(cells: Sequence[_Cell], place: str, problems: list[str]) -> dict[str, int]:
    """Position of each column; problems are added to."""
    found: dict[str, int] = {}
    for position, cell in enumerate(cells):
        if cell.text not in COLUMNS:
            problems.append(
                f"{place}:{cell.column}  unknown column {cell.text!r}; there is {', '.join(COLUMNS)}"
                + _hint(cell.text, COLUMNS)
            )
        elif cell.text in found:
            problems.append(f"{place}:{cell.column}  column {cell.text!r} stands there twice")
        found.setdefault(cell.text, position)
    problems += [f"{place}:1  column {name!r} is missing" for name in NEEDED if name not in found]
    return found


def _offer(
    cells: Sequence[_Cell], header: Mapping[str, int], place: str, problems: list[str]
) -> Iterator[Price]:
    """The offer of a row, or none and its problems."""
    if len(cells) != len(header):
        problems.append(f"{place}:{cells[-1].column}  {len(cells)} fields under {len(header)} columns")
        return
    before = len(problems)

    def read(name: str, reading: Callable[[str], _T], default: _T) -> _T:
        if name not in header:
            return default
        cell = cells[header[name]]
        try:
            return reading(cell.text)
        except _MistakeError as mistake:
            problems.append(f"{place}:{cell.column}  {name} {mistake}")
            return default

    offer = Price(
        as_of=read("as_of", _date, ""),
        provider=read("provider", _name, ""),
        accelerator=read("accelerator", _device, ""),
        kind=read("kind", _kind, PriceKind.ON_DEMAND),
        usd_per_device_hour=read("usd_per_device_hour", _usd, 0.0),
        devices_per_instance=read("devices_per_instance", _count, None),
        instance=read("instance", str, ""),
        region=read("region", str, ""),
        source=read("source", str, "") or place,
    )
    if len(problems) == before:
        yield offer


def _date(text: str) -> str:
    match = _DATE.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        date(int(match[1]), int(match[2]), int(match[3] or 1))
    except ValueError:
        raise _MistakeError(f"is {text!r}, not a date such as 2026-11-30 or 2026-11") from None
    return text


def _name(text: str) -> str:
    if not text:
        raise _MistakeError("is empty; say whose offer it is")
    return text


def _device(text: str) -> str:
    known = {*accelerator_names(), *(row["accelerator"] for row in csv_rows("prices.csv"))}
    if text not in known:
        raise _MistakeError(f"is {text!r}, which the catalog does not know{_hint(text, known)}")
    return text


def _kind(text: str) -> PriceKind:
    known = [kind.value for kind in PriceKind]
    if text and text not in known:
        raise _MistakeError(f"is {text!r}; there is {', '.join(known)}{_hint(text, known)}")
    return PriceKind(text) if text else PriceKind.ON_DEMAND


def _usd(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise _MistakeError(f"is {text!r}, not a number of at least 0 such as 3.99")
    return number


def _count(text: str) -> int | None:
    if text and not (text.isdecimal() and int(text) > 0):
        raise _MistakeError(f"is {text!r}, not a whole number of at least 1")
    return int(text) if text else None


def _hint(text: str, known: Iterable[str]) -> str:
    near = nearest_name(text, sorted(known)) if text else None
    return f".  Did you mean {near!r}?" if near else ""
