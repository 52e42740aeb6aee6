"""What this release runs of a replicated plan: who computes which share as ranks are lost, and what each allocates."""

from collections.abc import Sequence

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.markup import Markup, element
from trimtab.app.pages.quantities import UNKNOWN, plural
from trimtab.app.pages.rank_groups import colours
from trimtab.app.pages.tables import Cell, Column, TableRow, table
from trimtab.terms import format_bytes

_MOST_NUMBERED = 64
"""Shares that are drawn with the numbers of their owners."""


def shares(document: Facts) -> Markup | None:
    """The owners of shares, and the ranks with their memory and traffic; nothing for other plans."""
    replicated = document["replicated"]
    if replicated is None:
        return None
    ownership = replicated["ownership"]
    ramp = colours(max((item["ranks"] for item in ownership), default=0))
    about = (
        "A square is a share of the batch, in order; its number is the rank that computes it. "
        "When a rank is lost, the living ones take over its shares and finish the step."
        if ownership
        else "Shares are off: every rank computes its own part of the batch."
    )
    return element(
        "section",
        element("h2", "Shares"),
        element("p", about, class_="about"),
        *(_strip(item, ramp) for item in ownership),
        _rank_table(replicated["ranks"]),
        *(
            element("p", element("strong", phase), f": {formula}", class_="about")
            for phase, formula in replicated["formulas"].items()
        ),
        id="shares",
    )


def _strip(item: Facts, ramp: Sequence[str]) -> Markup:
    owners = item["owners"]
    is_numbered = len(owners) <= _MOST_NUMBERED
    squares = (element("i", owner if is_numbered else None, class_=ramp[owner]) for owner in owners)
    return element(
        "div",
        element("span", f"with {plural(item['ranks'], 'rank')}", class_="quiet"),
        element(
            "div",
            *squares,
            class_="squares numbered" if is_numbered else "squares",
            role="img",
            aria_label=f"Owners of the shares in order: {', '.join(map(str, owners))}",
        ),
        class_="strip",
    )


def _rank_table(ranks: Sequence[Facts]) -> Markup:
    classes = [name for name in ranks[0]["memory_bytes"] if any(rank["memory_bytes"][name] for rank in ranks)]
    columns = (
        Column("Ranks"),
        Column("Shares"),
        *(Column(name, is_number=True) for name in classes),
        Column("Reduce", is_number=True, unit="rank, step"),
        Column("Gather", is_number=True, unit="rank, step"),
    )
    rows = (
        TableRow(
            (
                rank["ranks"],
                rank["shares"] or "none",
                *(_size(rank["memory_bytes"][name]) for name in classes),
                _size(rank["reduce_bytes"]),
                _size(rank["gather_bytes"]),
            )
        )
        for rank in ranks
    )
    return table("What the runtime allocates and sends, activations left out", columns, rows)


def _size(size: int) -> Cell:
    return Cell(format_bytes(size) if size else UNKNOWN, size)
