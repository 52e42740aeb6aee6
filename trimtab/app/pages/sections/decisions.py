"""How every row of the tables lies on the mesh, and which line decided it."""

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.formula_lines import FormulaLines
from trimtab.app.pages.markup import Child, Markup, element, joined
from trimtab.app.pages.quantities import count, plural
from trimtab.app.pages.tables import Cell, Column, TableRow, table

_COLUMNS = (Column("Decided"), Column("Number", is_number=True), Column("Rows", is_wide=True))


def decisions(document: Facts, lines: FormulaLines) -> Markup | None:
    """A table for each table of the language: rows that are decided alike, with their placements."""
    tables = document["decisions"]
    if not tables:
        return None
    return element(
        "section",
        element("h2", "Placements"),
        element(
            "p",
            "Rows that are decided alike, by table. What no line names is replicated; gradients and states lie "
            "like their parameter.",
            class_="about",
        ),
        *(_table(facts, lines, is_open=index == 0) for index, facts in enumerate(tables)),
        id="placements",
    )


def _table(facts: Facts, lines: FormulaLines, *, is_open: bool) -> Markup:
    name, classes = facts["table"], facts["classes"]
    total = sum(rows["num_rows"] for rows in classes)
    told = f" {plural(total, 'row')} in {plural(len(classes), 'class', 'classes')}"
    summary = element("summary", element("h3", name), element("small", told))
    rows = (_row(found, lines) for found in classes)
    return element(
        "details", summary, table(f"Rows of {name}", _COLUMNS, rows, is_titled=False), open=is_open
    )


def _row(rows: Facts, lines: FormulaLines) -> TableRow:
    places = [decision["decided_by"] for decision in rows["decisions"]]
    decided = element("ul", *(_decision(decision, lines) for decision in rows["decisions"]))
    cells: tuple[Cell | Child, ...] = (
        decided if places else "as by default",
        Cell(count(rows["num_rows"]), rows["num_rows"]),
        joined((element("code", name) for name in rows["rows"]), " "),
    )
    return TableRow(cells, lines.numbers(*places))


def _decision(decision: Facts, lines: FormulaLines) -> Markup:
    place = decision["decided_by"]
    return element(
        "li",
        f"{decision['property']}: ",
        element("strong", decision["value"]),
        " ",
        lines.chip(place),
        data_by=lines.attribute(place),
    )
