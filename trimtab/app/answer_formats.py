"""An answer as text: a table for people, CSV, JSON."""

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from enum import StrEnum
from io import StringIO
from typing import Any

from trimtab.app.output import printable


class AnswerFormat(StrEnum):
    """What an answer is written as."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def as_table(names: Sequence[str], rows: Sequence[Sequence[Any]], *, width: int | None) -> str:
    """Rows under their names, numbers to the right.

    Where the width does not allow it texts are cut short, and if that is not enough every cell gets a line.

    Args:
        names: Of the columns.
        rows: Each as long as there are names.
        width: Columns of the terminal; None for as many as are needed.
    """
    cells = [[_for_people(value) for value in row] for row in rows]
    is_number = [_is_number(column) for column in zip(*rows, strict=True)] or [False] * len(names)
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    if width is not None:
        widths = _shrunk(widths, [len(name) for name in names], is_number, width)
        if sum(widths) + _GAP * (len(widths) - 1) > width:
            return "\n".join(_records(names, cells, width))
    return "\n".join(_line(row, widths, is_number) for row in (names, *cells))


def as_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """As RFC 4180 has it but for the line ends of Unix; NULL is an empty field, lists and the like are JSON."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if value is None else _as_field(value) for value in row])
    return text.getvalue()


def as_json(names: Sequence[str], types: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Strict JSON: integers and decimals with all their digits, null for what is not finite."""
    keys = [json.dumps(name) for name in names]
    columns = [{"name": name, "type": type_} for name, type_ in zip(names, types, strict=True)]
    objects = ",".join(
        "\n    {"
        + ", ".join(f"{key}: {json_cell(value)}" for key, value in zip(keys, row, strict=True))
        + "}"
        for row in rows
    )
    end = "\n  " if objects else ""
    return f'{{\n  "columns": {json.dumps(columns)},\n  "rows": [{objects}{end}]\n}}'


def json_cell(value: Any) -> str:
    """One value as strict JSON; what JSON has no word for is text.

    >>> json_cell(2**70), json_cell(float("nan")), json_cell({"a": [None, True]})
    ('1180591620717411303424', 'null', '{"a": [null, true]}')
    """
    match value:
        case None | bool() | int():
            return json.dumps(value)
        case float():
            return json.dumps(value) if math.isfinite(value) else "null"
        case Decimal():
            return format(value, "f")
        case dict():
            pairs = (f"{json.dumps(str(key))}: {json_cell(item)}" for key, item in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(json_cell, value)) + "]"
        case bytes():
            return json.dumps(value.hex())
        case _:
            return json.dumps(str(value))


_GAP = 2
_MIN_WIDTH = 12
"""What is left of a text that is cut short, if its name is not longer."""


def _for_people(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.6g}" if abs(value) < 1e15 else f"{value:.6g}"
        case Decimal():
            return f"{value:,f}"
        case dict() | list() | tuple() | bytes():
            return json_cell(value)
        case _:
            return printable(str(value)).replace("\n", " ").replace("\t", " ")


def _as_field(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case Decimal():
            return format(value, "f")
        case dict() | list() | tuple() | bytes():
            return json_cell(value)
        case _:
            return str(value)


def _is_number(column: Iterable[Any]) -> bool:
    known = [value for value in column if value is not None]
    return bool(known) and all(
        isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in known
    )


def _shrunk(widths: Sequence[int], least: Sequence[int], is_number: Sequence[bool], width: int) -> list[int]:
    """The widths with the widest texts made narrower, as far as they may be, until all fit."""
    found = [own if number else min(own, width) for own, number in zip(widths, is_number, strict=True)]
    while (excess := sum(found) + _GAP * (len(found) - 1) - width) > 0:
        spare = [
            0 if number else own - max(_MIN_WIDTH, title)
            for own, title, number in zip(found, least, is_number, strict=True)
        ]
        widest = max(range(len(found)), key=lambda index: found[index] if spare[index] > 0 else -1)
        if spare[widest] <= 0:
            break
        others = [own for index, own in enumerate(found) if index != widest and spare[index] > 0]
        step = max(1, found[widest] - max(others, default=0))
        found[widest] -= min(step, spare[widest], excess)
    return found


def _line(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> str:
    shown = (
        cell.rjust(own) if number else _cut(cell, own).ljust(own)
        for cell, own, number in zip(cells, widths, is_number, strict=True)
    )
    return (" " * _GAP).join(shown).rstrip()


def _records(names: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Iterator[str]:
    """Every cell on a line of its own."""
    indent = max(map(len, names)) + _GAP
    for number, row in enumerate(rows, start=1):
        yield f"row {number}"
        for name, cell in zip(names, row, strict=True):
            yield f"  {name.ljust(indent)}{_cut(cell, max(_MIN_WIDTH, width - indent - 2))}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
