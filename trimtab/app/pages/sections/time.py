"""Where the step of each rank group goes."""

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.markup import Markup, element
from trimtab.app.pages.rank_groups import group_labels, group_name
from trimtab.app.pages.sections.bars import Scale, bar, legend
from trimtab.terms import format_seconds

_PARTS = {
    "compute_s": "compute",
    "recompute_s": "recompute",
    "communication_s": "communication",
    "waiting_s": "waiting",
    "optimizer_s": "optimizer",
}
"""Fields of a group's time that add up to the step, and what the page calls them."""


def time(document: Facts) -> Markup | None:
    """A bar for each rank group; nothing where the time of a step is not known."""
    groups = document["groups"]
    if document["cost"]["step_s"] is None:
        return None
    step_s = document["cost"]["step_s"]["expected"]
    scale = Scale(most=step_s, limit=None, shown=format_seconds)
    parts = [part for field, part in _PARTS.items() if any(group["time"][field] for group in groups)]
    return element(
        "section",
        element("h2", "Time"),
        element(
            "p",
            f"Where the {format_seconds(step_s)} of a step go for a rank of each group. Communication is what "
            "nothing hides; the rest of it runs beside the computation, hidden.",
            class_="about",
        ),
        legend(parts),
        *(_group(group, label, scale) for group, label in zip(groups, group_labels(groups), strict=True)),
        id="time",
    )


def _group(group: Facts, label: Markup, scale: Scale) -> Markup:
    spent = group["time"]
    busy_s = spent["compute_s"] + spent["recompute_s"]
    hidden_s = spent["hidden_communication_s"]
    figures = f"{format_seconds(busy_s)} computing"
    if hidden_s:
        figures += f", {format_seconds(hidden_s)} hidden"
    told = element(
        "span", element("span", label, class_="name"), element("span", figures, class_="number"), class_="row"
    )
    parts = {part: spent[field] for field, part in _PARTS.items()}
    return element("div", told, bar(parts, scale, label=group_name(group)), class_="bars")
