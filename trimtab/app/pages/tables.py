"""Tables of a page: sortable where a script runs, readable where none does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trimtab.app.pages.markup import Child, Markup, element, joined


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        title: Its head.
        is_number: Whether its cells stand right-aligned in figures of one width.
        unit: Stands small beside the title.
        is_wide: Whether its cells hold text that must not be squeezed where the page is narrow.
    """

    title: str
    is_number: bool = False
    unit: str = ""
    is_wide: bool = False

    @property
    def style(self) -> str | None:
        """Class of its cells."""
        if self.is_number:
            return "number"
        return "words" if self.is_wide else None


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one place of a table.

    Args:
        content: Shown.
        value: What the column is sorted by, where the shown text does not sort.
    """

    content: Child
    value: float | None = None


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row: its first cell is its name.

    Args:
        cells: One for each column.
        lines: Numbers of the formula lines that decided it.
    """

    cells: Sequence[Cell | Child]
    lines: Sequence[str] = ()


def table(
    title: str,
    columns: Sequence[Column],
    rows: Iterable[TableRow],
    *,
    is_sortable: bool = False,
    is_titled: bool = True,
) -> Markup:
    """A table in a box of its own, which scrolls sideways where the page is narrow.

    Args:
        title: Stands above the box, where it does not scroll away.
        columns: From left to right.
        rows: From the top.
        is_sortable: Whether a script lets the reader sort it.
        is_titled: False where a heading above says the same; the title is then for who does not see it.
    """
    head = element("thead", element("tr", *(_head(column) for column in columns)))
    body = element("tbody", *(_row(columns, row) for row in rows))
    box = element(
        "div",
        element("table", head, body, aria_label=title, data_sortable=is_sortable),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=title,
    )
    return joined((element("h3", title, class_="title"), box)) if is_titled else box


def _head(column: Column) -> Markup:
    unit = element("small", f" {column.unit}") if column.unit else None
    return element("th", column.title, unit, scope="col", class_=column.style)


def _row(columns: Sequence[Column], row: TableRow) -> Markup:
    cells = [
        _cell(column, cell if isinstance(cell, Cell) else Cell(cell), is_name=index == 0)
        for index, (column, cell) in enumerate(zip(columns, row.cells, strict=True))
    ]
    return element("tr", *cells, data_by=" ".join(row.lines) or None)


def _cell(column: Column, cell: Cell, *, is_name: bool) -> Markup:
    value = None if cell.value is None else f"{cell.value:.15g}"
    if is_name:
        return element("th", cell.content, scope="row", class_=column.style, data_value=value)
    return element("td", cell.content, class_=column.style, data_value=value)
