"""The mesh as a picture: nodes with their ranks, coloured by what the ranks hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimtab.app.explanation_text.quantities import elements, flops
from trimtab.app.pages.facts import Facts
from trimtab.app.pages.formula_lines import FormulaLines
from trimtab.app.pages.markup import Markup, element, joined
from trimtab.app.pages.quantities import axes, count, plural
from trimtab.app.pages.rank_groups import colour_of_ranks, group_labels, stage_label
from trimtab.app.pages.rank_ranges import members
from trimtab.app.pages.tables import Cell, Column, TableRow, table

_MOST_DRAWN = 1024
"""Ranks that are drawn one by one; of more, a node is drawn as one piece."""

_MOST_NUMBERED = 64
"""Ranks that are drawn with their numbers."""


def mesh(document: Facts, lines: FormulaLines) -> Markup:
    """Axes, the picture, and the rank groups as a table."""
    sizes, decided_by = document["mesh"]["axes"], document["mesh"]["decided_by"]
    return element(
        "section",
        element("h2", "Mesh ", lines.chip(decided_by)),
        element(
            "p",
            element("code", axes(sizes)),
            f": {_order(sizes)}",
            class_="about",
            data_by=lines.attribute(decided_by),
        ),
        *_picture(document),
        _group_table(document["groups"]),
        id="mesh",
    )


def _order(sizes: Sequence[Facts]) -> str:
    if len(sizes) == 1:
        return "one axis, ranks in order."
    return f"neighbouring ranks differ in {sizes[-1]['axis']}; {sizes[0]['axis']} varies slowest."


def _picture(document: Facts) -> Iterator[Markup]:
    where, sizes, groups = document["where"], document["mesh"]["axes"], document["groups"]
    num_ranks = where["num_devices"]
    nodes = [node for run in where["nodes"] for node in _nodes(run)]
    if not nodes:
        return
    drawing = _Drawing(colours=colour_of_ranks(num_ranks, groups))
    if drawing.is_by_rank:
        yield _controls(sizes, num_ranks)
    legend = (element("li", label) for label in group_labels(groups))
    yield element(
        "figure",
        element(
            "div",
            *(drawing.node(node, ranks) for node, ranks in nodes),
            class_="nodes numbered" if drawing.is_numbered else "nodes",
            role="img",
            aria_label=f"{plural(num_ranks, 'rank')} on {plural(len(nodes), 'node')}, coloured by rank group",
            data_axes=" ".join(f"{axis['axis']}:{axis['size']}" for axis in sizes)
            if drawing.is_by_rank
            else None,
        ),
        element("figcaption", element("ul", *legend, class_="legend"), _told()),
        class_="mesh",
    )


def _nodes(run: Facts) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each node of a run of equal nodes with its ranks, which are neighbours."""
    ranks, size = members(run["ranks"]), run["ranks_per_node"]
    for index, node in enumerate(members(run["nodes"])):
        yield node, ranks[index * size : (index + 1) * size]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawing:
    """How much of each rank is drawn.

    Args:
        colours: Of each rank.
    """

    colours: Sequence[str]

    @property
    def is_by_rank(self) -> bool:
        """Whether every rank is a square of its own."""
        return len(self.colours) <= _MOST_DRAWN

    @property
    def is_numbered(self) -> bool:
        """Whether its number stands in it."""
        return len(self.colours) <= _MOST_NUMBERED

    def node(self, node: int, ranks: Sequence[int]) -> Markup:
        """A node: its number, its ranks, a square for each or one for those of each group."""
        name = element("small", f"node {node}")
        if self.is_by_rank:
            squares = [
                element("i", rank if self.is_numbered else None, class_=self.colours[rank]) for rank in ranks
            ]
        else:
            squares = [
                element("i", class_=colour) for colour in dict.fromkeys(self.colours[rank] for rank in ranks)
            ]
        held = f"ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"
        return element("div", name, element("div", *squares), class_="node", title=held)


def _controls(sizes: Sequence[Facts], num_ranks: int) -> Markup:
    """What a script offers: colours by process groups, and where a rank stands."""
    choices = [
        ("", "rank group"),
        *((axis["axis"], f"groups over {axis['axis']}") for axis in sizes if axis["size"] > 1),
    ]
    radios = (
        element(
            "label",
            element("input", type="radio", name="colour", value=value, checked=not value),
            f" {shown}",
        )
        for value, shown in choices
    )
    lookup = element(
        "label",
        "Where is rank ",
        element("input", type="number", id="rank-asked", min=0, max=num_ranks - 1, inputmode="numeric"),
    )
    return element(
        "div",
        element("fieldset", element("legend", "Colour by"), *radios),
        lookup,
        class_="controls scripted-only",
    )


def _told() -> Markup:
    """Where the script says what it found out about a rank."""
    return element("p", id="rank-told", aria_live="polite", class_="scripted-only")


def _group_table(groups: Sequence[Facts]) -> Markup | None:
    if not groups:
        return None
    is_mixed = len({group["accelerator"] for group in groups}) > 1
    columns = (
        Column("Group"),
        Column("Ranks"),
        Column("Nodes"),
        *((Column("Device"),) if is_mixed else ()),
        Column("Stages and layers", is_wide=True),
        Column("Parameters", is_number=True, unit="all its stages"),
        Column("FLOPs", is_number=True, unit="rank, step"),
        Column("Computed again", is_number=True, unit="rank, step"),
    )
    rows = (
        _group_row(group, label, is_mixed=is_mixed)
        for group, label in zip(groups, group_labels(groups), strict=True)
    )
    return table("Rank groups: ranks that hold and do the same", columns, rows)


def _group_row(group: Facts, label: Markup, *, is_mixed: bool) -> TableRow:
    held = sum(stage["parameters"] for stage in group["stages"])
    computed, again = group["step_flops"]["causal"], group["recomputed_flops"]["causal"]
    return TableRow(
        (
            label,
            f"{group['ranks']} ({count(group['num_ranks'])})",
            group["nodes"],
            *((group["accelerator"],) if is_mixed else ()),
            joined(map(stage_label, group["stages"]), "; "),
            Cell(elements(held), held),
            Cell(flops(computed), computed),
            Cell(flops(again), again),
        )
    )
