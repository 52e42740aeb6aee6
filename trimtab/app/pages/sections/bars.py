"""Stacked bars: parts of a whole, side by side on one scale."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from trimtab.app.pages.markup import Markup, element

_WIDTH = 1000
"""Units of a bar's drawing; it is stretched to the width of the page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """What the whole width of a bar stands for.

    Args:
        most: The amount at the right end.
        limit: An amount that a line is drawn at; None for no line.
        shown: An amount as people read it.
    """

    most: float
    limit: float | None
    shown: Callable[[float], str]


def bar(parts: Mapping[str, float], scale: Scale, *, label: str) -> Markup:
    """One bar; its parts carry their names as classes.

    Args:
        parts: Amounts by name, from left to right.
        scale: Of the bar.
        label: What it says to who does not see it.
    """
    shapes, left = [], 0.0
    for name, amount in parts.items():
        width = _WIDTH * amount / scale.most if scale.most else 0.0
        if width:
            title = element("title", f"{name}: {scale.shown(amount)}")
            shapes.append(
                element(
                    "g",
                    title,
                    element("rect", x=_units(left), width=_units(width), height=10, class_=f"part {name}"),
                )
            )
        left += width
    if scale.limit is not None:
        at = _units(_WIDTH * scale.limit / scale.most)
        shapes += [element("line", x1=at, x2=at, y2=10, class_=name) for name in ("halo", "limit")]
    told = f"{label}: " + ", ".join(
        f"{name} {scale.shown(amount)}" for name, amount in parts.items() if amount
    )
    return element(
        "svg",
        *shapes,
        viewBox=f"0 0 {_WIDTH} 10",
        preserveAspectRatio="none",
        role="img",
        aria_label=told,
        class_="bar",
    )


def legend(names: Iterable[str]) -> Markup:
    """Which colour is which part."""
    items = (
        element("li", element("i", class_=f"part {name}"), f" {name.replace('-', ' ')}") for name in names
    )
    return element("ul", *items, class_="legend")


def _units(amount: float) -> str:
    return f"{amount:.1f}".removesuffix(".0")
