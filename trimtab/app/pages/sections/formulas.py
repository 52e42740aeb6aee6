"""The strategy line by line, and with each line what it decided."""

from collections.abc import Iterator, Mapping, Sequence

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.formula_lines import FormulaLines
from trimtab.app.pages.markup import Markup, element
from trimtab.app.pages.merged_collectives import MergedCollective
from trimtab.app.pages.program_lines import program_line
from trimtab.app.pages.quantities import axes, level_bytes, plural


def formulas(document: Facts, lines: FormulaLines, collectives: Sequence[MergedCollective]) -> Markup:
    """Every formula with everything that it decided; empty strategies say that the defaults hold."""
    if not document["formulas"]:
        about = "No formula is written: the defaults hold. The batch is split over all devices, everything else is replicated."
        return _section(element("p", about, class_="about"))
    items = (
        _line(number, formula, list(_deeds(document, formula["at"], collectives)))
        for number, formula in enumerate(document["formulas"], start=1)
    )
    hint = element(
        "p", "Choose a line: what it decided is marked all over the page.", class_="about scripted-only"
    )
    said = element("p", id="said", aria_live="polite", class_="unseen")
    return _section(hint, element("ol", *items, class_="program"), said)


def _section(*children: Markup) -> Markup:
    return element("section", element("h2", "Formulas"), *children, id="formulas")


def _line(number: int, formula: Facts, deeds: Sequence[str]) -> Markup:
    told = deeds or ["decides nothing here"]
    return program_line(str(number), formula, told, decides=f"Line {number} decides: {'; '.join(told)}")


def _deeds(document: Facts, at: str, collectives: Sequence[MergedCollective]) -> Iterator[str]:
    """What the formulas at one place decided, a phrase for each kind of thing."""
    mesh, pipeline, on_loss = document["mesh"], document["pipeline"], document["on_loss"]
    if mesh["decided_by"] == at:
        yield f"the mesh: {axes(mesh['axes'])}"
    yield from _decided_rows(document, at)
    if pipeline and pipeline["decided_by"] == at:
        yield f"{plural(pipeline['num_stages'], 'stage')} over {pipeline['axis']}, {pipeline['schedule']}"
    yield from _sent(at, collectives)
    if on_loss["limited_by"] == at:
        yield f"no stronger rule than {on_loss['strongest']} when a rank is lost"


def _decided_rows(document: Facts, at: str) -> Iterator[str]:
    """Each property with the rows that it is decided for: ``split tp: 884 params (vocab, heads, mlp)``."""
    by_property: dict[str, list[str]] = {}
    for table in document["decisions"]:
        for name, values in _decided_values(table, at).items():
            shown = ", ".join(value for value in values if value not in _PLAIN)
            rows = f"{sum(values.values()):,} {table['table']}"
            by_property.setdefault(name, []).append(f"{rows} ({shown})" if shown else rows)
    yield from (
        f"{name}: {', '.join(rows)}" for name, rows in by_property.items() if name != _TOLD_BY_PIPELINE
    )


_PLAIN = ("yes", "in pieces")
"""Values that say no more than their property."""

_TOLD_BY_PIPELINE = "stage"
"""The property that the line of the pipeline tells in short."""


def _decided_values(table: Facts, at: str) -> Mapping[str, Mapping[str, int]]:
    """For each property that a place decided its values, with the numbers of rows."""
    found: dict[str, dict[str, int]] = {}
    for rows in table["classes"]:
        for decision in rows["decisions"]:
            if decision["decided_by"] == at:
                values = found.setdefault(decision["property"], {})
                values[decision["value"]] = values.get(decision["value"], 0) + rows["num_rows"]
    return found


def _sent(at: str, collectives: Sequence[MergedCollective]) -> Iterator[str]:
    own = [collective for collective in collectives if collective.facts["decided_by"] == at]
    if own:
        levels = own[0].all_bytes
        total = {level: sum(collective.all_bytes[level] for collective in own) for level in levels}
        yield f"{plural(len(own), 'collective')}: all ranks send {level_bytes(total)} a step"
