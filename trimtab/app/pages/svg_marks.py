"""What pictures are made of: lines, dots and words, placed."""

from trimtab.app.pages.markup import Markup, element


def line(x1: float, y1: float, x2: float, y2: float, color: str) -> Markup:
    """A straight one."""
    return element("path", d=f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", stroke=color)


def dot(x: float, y: float, radius: float, color: str) -> Markup:
    """A filled one."""
    return element(
        "path",
        d=f"M{x - radius:.1f} {y:.1f}a{radius} {radius} 0 1 0 {2 * radius} 0a{radius} {radius} 0 1 0 {-2 * radius} 0",
        fill=color,
    )


def words(
    x: float,
    y: float,
    said: str,
    *,
    size: int,
    color: str = "#222222",
    anchor: str = "start",
    weight: str = "400",
) -> Markup:
    """A line of text, its foot at y."""
    return element(
        "text",
        said,
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        fill=color,
        font_size=size,
        font_weight=weight,
        text_anchor=anchor,
    )
