"""The rank groups of an explanation: their names, what they hold, the colour that each has all over a page."""

from collections.abc import Sequence

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.markup import Markup, element
from trimtab.app.pages.rank_ranges import members

NUM_COLOURS = 16
"""Colours of the ramp in the style sheet."""


def colours(num_groups: int) -> tuple[str, ...]:
    """A class of the style sheet for each group: spread over the ramp; more groups than colours begin again.

    >>> colours(3), colours(1)
    (('c0', 'c8', 'c15'), ('c0',))
    """
    if num_groups > NUM_COLOURS:
        return tuple(f"c{number % NUM_COLOURS}" for number in range(num_groups))
    step = (NUM_COLOURS - 1) / max(1, num_groups - 1)
    return tuple(f"c{int(number * step + 0.5)}" for number in range(num_groups))


def group_name(group: Facts) -> str:
    """A group as it is called: ``A: pp 0``."""
    return f"{group['name']}: {group['title']}"


def stage_label(stage: Facts) -> str:
    """What a stage holds: ``stage 0: embedding, layers 0-7``."""
    layers = [f"layers {stage['layers']}"] if stage["layers"] else []
    parts = stage["parts"]
    held = [part for part in parts if part != "head"] + layers + [part for part in parts if part == "head"]
    return f"stage {stage['stage']}: {', '.join(held)}"


def group_labels(groups: Sequence[Facts]) -> tuple[Markup, ...]:
    """For each group its name beside its colour."""
    return tuple(
        element("span", element("i", class_=f"swatch {colour}"), f" {group_name(group)}", class_="label")
        for group, colour in zip(groups, colours(len(groups)), strict=True)
    )


def colour_of_ranks(num_ranks: int, groups: Sequence[Facts]) -> Sequence[str]:
    """For each rank the colour of its group."""
    found = ["c0"] * num_ranks
    for group, colour in zip(groups, colours(len(groups)), strict=True):
        for rank in members(group["ranks"]):
            found[rank] = colour
    return found
