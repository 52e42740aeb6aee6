"""What ranks send: totals by level of link, and every collective as a row that can be sorted."""

from collections.abc import Iterator, Mapping, Sequence

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.formula_lines import FormulaLines
from trimtab.app.pages.markup import Child, Markup, element, joined
from trimtab.app.pages.merged_collectives import MergedCollective
from trimtab.app.pages.quantities import LEVELS, UNKNOWN, percent, runs
from trimtab.app.pages.tables import Cell, Column, TableRow, table
from trimtab.terms import format_bytes, format_seconds


def traffic(document: Facts, lines: FormulaLines, collectives: Sequence[MergedCollective]) -> Markup | None:
    """Links, axes, collectives; nothing where no figures are known."""
    if not document["groups"]:
        return None
    if not collectives:
        return _section(element("p", "Nothing is sent.", class_="about"))
    total = _total(document)
    links = (element("li", _link(link, total)) for link in document["where"]["links"])
    return _section(
        element("ul", *links, class_="links"),
        _axis_table(total, lines, collectives),
        _collective_table(list(total), len(document["groups"]), lines, collectives),
    )


def _total(document: Facts) -> Mapping[str, int]:
    """What all ranks send in a step, by the levels of link that there are."""
    linked = {link["level"] for link in document["where"]["links"]}
    return {level: size for level, size in document["sent_bytes"].items() if size or level in linked}


def _section(*children: Markup) -> Markup:
    return element("section", element("h2", "Communication"), *children, id="communication")


def _link(link: Facts, total: Mapping[str, int]) -> Markup:
    level = link["level"]
    sent = format_bytes(total.get(level, 0))
    speed = f"{format_bytes(link['bytes_per_s'])}/s, {format_seconds(link['latency_s'])} a hop"
    return joined(
        (
            element("strong", sent),
            f" a step {LEVELS.get(level, level)}, all ranks together, over {speed} ",
            element("small", link["source"]),
        )
    )


def _axis_table(
    total: Mapping[str, int], lines: FormulaLines, collectives: Sequence[MergedCollective]
) -> Markup:
    """What each set of axes sends: which kind of parallelism loads which links."""
    by_axes: dict[str, list[MergedCollective]] = {}
    for collective in collectives:
        by_axes.setdefault(collective.axes, []).append(collective)
    columns = (
        Column("Over"),
        Column("Operations"),
        *(Column(LEVELS[level].capitalize(), is_number=True, unit="all ranks, step") for level in total),
        Column("Lines"),
    )
    rows = (_axis_row(axes, found, total, lines) for axes, found in by_axes.items())
    return table("By axis", columns, rows, is_sortable=True)


def _axis_row(
    axes: str, found: Sequence[MergedCollective], total: Mapping[str, int], lines: FormulaLines
) -> TableRow:
    sent = {level: sum(collective.all_bytes[level] for collective in found) for level in total}
    places = list(dict.fromkeys(collective.facts["decided_by"] for collective in found))
    cells: tuple[Cell | Child, ...] = (
        element("code", axes),
        ", ".join(dict.fromkeys(collective.facts["operation"] for collective in found)),
        *(_size(sent[level], total[level]) for level in total),
        lines.chips(places),
    )
    return TableRow(cells, lines.numbers(*places))


def _collective_table(
    levels: Sequence[str], num_groups: int, lines: FormulaLines, collectives: Sequence[MergedCollective]
) -> Markup:
    columns = (
        Column("Operation", unit="over"),
        Column("Block", unit="phase"),
        Column("Runs", is_number=True, unit="step"),
        *(Column(LEVELS[level].capitalize(), is_number=True, unit="rank, step") for level in levels),
        Column("One run", is_number=True),
        Column("Route", unit="type"),
        Column("Tensors", unit="why", is_wide=True),
        *((Column("Groups"),) if num_groups > 1 else ()),
        Column("Line"),
    )
    rows = (_collective_row(collective, levels, num_groups, lines) for collective in collectives)
    caption = "Every collective: bytes are those of the rank that sends most"
    return table(caption, columns, rows, is_sortable=True)


def _collective_row(
    collective: MergedCollective, levels: Sequence[str], num_groups: int, lines: FormulaLines
) -> TableRow:
    facts = collective.facts
    cells: tuple[Cell | Child, ...] = (
        joined((element("code", facts["operation"]), element("small", f"over {collective.axes}"))),
        joined((facts["block"], element("small", facts["phase"]))),
        Cell(runs(collective.runs_per_step), collective.runs_per_step),
        *(_size(collective.rank_bytes[level]) for level in levels),
        _one_run(collective),
        joined((_route(facts), element("small", ", ".join(_wire(facts))))),
        joined((facts["tensors"], element("small", facts["reason"]))),
        *((_groups(collective.groups, num_groups),) if num_groups > 1 else ()),
        lines.chip(facts["decided_by"]),
    )
    return TableRow(cells, lines.numbers(facts["decided_by"]))


def _size(size: int, total: int | None = None) -> Cell:
    """Bytes, with their share of a total where one is given."""
    if not size:
        return Cell(UNKNOWN, 0)
    share = element("small", f" {percent(size / total)}") if total else None
    return Cell(joined((format_bytes(size), share)), size)


def _one_run(collective: MergedCollective) -> Cell:
    if collective.seconds is None:
        return Cell(UNKNOWN, 0)
    hidden = element("small", " hidden") if collective.facts["is_hidden"] else None
    return Cell(joined((format_seconds(collective.seconds), hidden)), collective.seconds)


def _route(facts: Facts) -> str:
    levels = f"({', '.join(facts['levels'])})" if facts["levels"] else ""
    return f"{facts['route']}{levels}"


def _wire(facts: Facts) -> Iterator[str]:
    """The type on the wire, and everything else about the payload that is not as by default."""
    yield facts["wire"]
    if facts["compress"] != "none":
        yield facts["compress"]
    if facts["bucket_bytes"] is not None:
        yield f"buckets of {format_bytes(facts['bucket_bytes'])}"
    if facts["is_sealed"]:
        yield "sealed"


def _groups(names: Sequence[str], num_groups: int) -> str:
    return "all" if len(names) == num_groups else ", ".join(names)
