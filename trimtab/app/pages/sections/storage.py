"""How a class of the user's own is stored in pieces: what each rank keeps, and what the busiest one sends."""

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.formula_lines import FormulaLines
from trimtab.app.pages.markup import Markup, element
from trimtab.app.pages.quantities import plural
from trimtab.app.pages.tables import Cell, Column, TableRow, table
from trimtab.terms import format_bytes


def storage(document: Facts, lines: FormulaLines) -> Markup | None:
    """What is kept and sent, and what is not known; nothing for a network, or for a class that is whole everywhere."""
    stored = document["storage"]
    if stored is None:
        return None
    about = f"{plural(stored['num_ranks'], 'rank')} compute the whole class on samples of their own, and keep pieces."
    if stored["gathered_bytes"]:
        about += (
            f" {format_bytes(stored['gathered_bytes'])} of parameters are whole at once while they are used: what is "
            f"outside of the {plural(stored['layers'], 'layer')}, and the largest of them."
        )
    return element(
        "section",
        element("h2", "Storage"),
        element("p", about, class_="about"),
        table(
            "What each rank keeps",
            (Column("Table"), Column("Kept", is_number=True), Column("Whole", is_number=True), Column("By")),
            [
                TableRow(
                    (
                        item["table"],
                        _size(item["held_bytes"]),
                        _size(item["whole_bytes"]),
                        lines.chip(item["decided_by"]),
                    ),
                    lines.numbers(item["decided_by"]),
                )
                for item in stored["tables"]
            ],
        ),
        table(
            "What the busiest rank sends in a step",
            (
                Column("To", is_wide=True),
                Column("Operation"),
                Column("Times", is_number=True),
                Column("Bytes", is_number=True),
            ),
            [
                TableRow((item["what"], item["operation"], str(item["times"]), _size(item["sent_bytes"])))
                for item in stored["transfers"]
            ],
        ),
        *(element("p", text, class_="about") for text in stored["assumptions"]),
        id="storage",
    )


def _size(size: int) -> Cell:
    return Cell(format_bytes(size), size)
