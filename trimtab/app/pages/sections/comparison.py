"""What a second job does otherwise than a first one."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from trimtab.app.explanation_text.quantities import flops
from trimtab.app.pages.facts import Facts
from trimtab.app.pages.formula_lines import FormulaLines
from trimtab.app.pages.markup import Child, Markup, element, joined
from trimtab.app.pages.program_lines import program_line
from trimtab.app.pages.quantities import UNKNOWN, change, count, dollars, percent, plural
from trimtab.app.pages.sections.bars import Scale, bar
from trimtab.app.pages.tables import Cell, Column, TableRow, table
from trimtab.terms import format_bytes, format_seconds

_SHOWN: Mapping[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "s": format_seconds,
    "flops": flops,
    "usd": dollars,
    "share": percent,
    "per_s": lambda rate: f"{count(rate)}/s",
}
"""How a figure of each unit is written."""


def comparison(document: Facts) -> Markup:
    """The whole body of a page: formulas beside everything that changes with them."""
    before = FormulaLines(document["removed"], sign="-")
    after = FormulaLines(document["added"], sign="+")
    sections = (
        _figures(document["figures"]),
        _facts(document["facts"], before, after),
        _rows(document["rows"], before, after),
        _groups(document["groups"]),
    )
    main = element("main", *sections, id="plan")
    columns = main if document["is_same"] else element("div", _formulas(document), main, class_="columns")
    return joined((_headline(document), columns))


def _headline(document: Facts) -> Markup:
    first, second = document["before"], document["after"]
    if document["is_same"]:
        verdict = "Both are the same plan."
    else:
        changed = plural(len(document["figures"]), "figure")
        verdict = (
            f"{changed} of all ranks and {plural(len(document['rows']), 'class', 'classes')} of rows change."
        )
    return element(
        "header",
        element("p", "Comparison of two jobs", class_="kicker"),
        element("h1", f"{second} against {first}"),
        element("p", verdict, class_="verdict"),
    )


def _formulas(document: Facts) -> Markup:
    lines = [
        *(_line("-", number, formula) for number, formula in enumerate(document["removed"], start=1)),
        *(_line("+", number, formula) for number, formula in enumerate(document["added"], start=1)),
    ]
    if not lines:
        lines = [element("li", "The formulas are the same.", class_="quiet")]
    about = f"Lines of {document['before']} that are gone (-), lines of {document['after']} that are new (+)."
    return element(
        "section",
        element("h2", "Formulas"),
        element("p", about, class_="about"),
        element("ol", *lines, class_="program"),
        element("p", id="said", aria_live="polite", class_="unseen"),
        id="formulas",
    )


def _line(sign: str, number: int, formula: Facts) -> Markup:
    what = "gone" if sign == "-" else "new"
    return program_line(f"{sign}{number}", formula, [what], decides=f"Line {sign}{number} is {what}")


def _figures(figures: Sequence[Facts]) -> Markup | None:
    if not figures:
        return None
    return element(
        "section", element("h2", "All ranks"), _figure_table("Figures that change", figures), id="figures"
    )


def _groups(groups: Sequence[Facts]) -> Markup | None:
    if not groups:
        return None
    return element("section", element("h2", "One rank of each group"), *map(_group, groups), id="groups")


def _group(group: Facts) -> Markup:
    """The figures of one group, or that only one of the jobs has it."""
    before, after = group["before"], group["after"]
    if before and after:
        title = after if before == after else f"{before} becomes {after}"
    else:
        title = f"{before} is gone" if before else f"{after} is new"
    if not group["figures"]:
        return element("h3", title, class_="title")
    return _figure_table(title, group["figures"])


def _figure_table(title: str, figures: Sequence[Facts]) -> Markup:
    columns = (
        Column("Figure"),
        Column("Before", is_number=True),
        Column("After", is_number=True),
        Column("Change", is_number=True),
        Column("Before and after"),
    )
    return table(title, columns, map(_figure_row, figures))


def _figure_row(figure: Facts) -> TableRow:
    before, after, shown = figure["before"], figure["after"], _SHOWN[figure["unit"]]
    return TableRow(
        (
            figure["subject"],
            Cell(UNKNOWN if before is None else shown(before), before),
            Cell(UNKNOWN if after is None else shown(after), after),
            UNKNOWN if before is None or after is None else change(before, after),
            _pair(figure["subject"], before or 0.0, after or 0.0, shown),
        )
    )


def _pair(subject: str, before: float, after: float, shown: Callable[[float], str]) -> Markup:
    """Both as bars on one scale."""
    scale = Scale(most=max(before, after), limit=None, shown=shown)
    bars = (
        bar({name: amount}, scale, label=subject) for name, amount in (("before", before), ("after", after))
    )
    return element("div", *bars, class_="pair")


def _facts(facts: Sequence[Facts], before: FormulaLines, after: FormulaLines) -> Markup | None:
    if not facts:
        return None
    columns = (Column("What"), Column("Before"), Column("After"))
    rows = (
        TableRow(
            (
                fact["subject"],
                _said(fact["before"], fact["before_at"], before),
                _said(fact["after"], fact["after_at"], after),
            ),
            (*before.numbers(fact["before_at"]), *after.numbers(fact["after_at"])),
        )
        for fact in facts
    )
    return element(
        "section", element("h2", "The job"), table("What is said otherwise", columns, rows), id="facts"
    )


def _rows(rows: Sequence[Facts], before: FormulaLines, after: FormulaLines) -> Markup | None:
    if not rows:
        return None
    columns = (
        Column("Table"),
        Column("Property"),
        Column("Before"),
        Column("After"),
        Column("Rows", is_number=True),
        Column("Names", is_wide=True),
    )
    found = (TableRow(tuple(_row_cells(row, before, after)), _numbers(row, before, after)) for row in rows)
    title = "Rows that are decided otherwise"
    return element(
        "section", element("h2", "Placements"), table(title, columns, found, is_sortable=True), id="rows"
    )


def _row_cells(row: Facts, before: FormulaLines, after: FormulaLines) -> Iterator[Cell | Child]:
    yield row["table"]
    yield row["property"]
    yield _said(row["before"], row["before_at"], before)
    yield _said(row["after"], row["after_at"], after)
    yield Cell(count(row["num_rows"]), row["num_rows"])
    yield joined((element("code", name) for name in row["rows"]), " ")


def _numbers(row: Facts, before: FormulaLines, after: FormulaLines) -> tuple[str, ...]:
    return (*before.numbers(row["before_at"]), *after.numbers(row["after_at"]))


def _said(words: str, place: str, lines: FormulaLines) -> Markup:
    """What one of the jobs says, with the line that said it."""
    return joined((words or element("span", "nothing", class_="quiet"), " ", lines.chips([place])))
