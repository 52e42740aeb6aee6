"""Relations: tables that a question can be asked of, each declared once, with what every column holds."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

Source = TypeVar("Source", contravariant=True)

Cell = str | int | float | bool | None
"""What stands in one row of one column; None where there is nothing to say."""


class ColumnType(StrEnum):
    """What a column holds."""

    TEXT = "text"
    INTEGER = "integer"  # of 64 bits
    BIG_INTEGER = "big integer"  # of 128 bits: FLOPs of a step
    REAL = "real"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True)
class Column(Generic[Source]):
    """One column: how it is called, what it holds, and where its cells come from.

    Args:
        name: In small letters; a unit stands at its end: ``_bytes``, ``_s``, ``_ns``, ``_usd``.
        type: Of its cells.
        meaning: For the reader of a table's description: no sentence, no full stop.
        value: The cell of one row, from what the row is made of.
    """

    name: str
    type: ColumnType
    meaning: str
    value: Callable[[Source], Cell]


@dataclass(frozen=True, kw_only=True, slots=True)
class Relation:
    """A table with its rows, which are made when they are asked for.

    Args:
        name: In small letters.
        meaning: What one row is.
        columns: In order.
        rows: Makes the rows anew, each as long as there are columns; may raise what is wrong with their source.
    """

    name: str
    meaning: str
    columns: tuple[Column[Any], ...]
    rows: Callable[[], Iterator[tuple[Cell, ...]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema(Generic[Source]):
    """A relation without its rows.

    Args:
        name: In small letters.
        meaning: What one row is.
        columns: In order; no two names are equal but for the size of letters.
    """

    name: str
    meaning: str
    columns: tuple[Column[Source], ...]

    def filled(self, sources: Callable[[], Iterable[Source]]) -> Relation:
        """The relation with one row for each of the sources, which are asked for when its rows are."""

        def rows() -> Iterator[tuple[Cell, ...]]:
            values = [column.value for column in self.columns]
            for source in sources():
                yield tuple(value(source) for value in values)

        return Relation(name=self.name, meaning=self.meaning, columns=self.columns, rows=rows)


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names of columns, numbered where one was there already: SQL takes ``at_dp`` and ``at_DP`` for one.

    >>> unique_names(["rank", "bytes", "Bytes", "bytes"])
    ('rank', 'bytes', 'Bytes_1', 'bytes_2')
    """
    numbers: Counter[str] = Counter()
    found: dict[str, str] = {}
    for name in names:
        unique = name
        while unique.casefold() in found:
            numbers[name.casefold()] += 1
            unique = f"{name}_{numbers[name.casefold()]}"
        found[unique.casefold()] = unique
    return tuple(found.values())
