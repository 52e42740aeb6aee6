"""Text can be read on everything that it stands on, in light and in dark."""

import re
from importlib.resources import files

import pytest

STYLE = files("trimtab.app.pages").joinpath("explain.css").read_text(encoding="utf-8")

ON = {
    "ink": ("paper", "panel", "mark", "warn-panel"),
    "quiet": ("paper", "panel", "mark", "warn-panel"),
    "accent": ("paper", "panel"),
    "good": ("paper",),
    "bad": ("paper",),
    "warn": ("warn-panel",),
}
"""Names of colours of text, each with the grounds that it stands on."""


def schemes():
    """The colours of each scheme: light, dark, print."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    found = [dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in blocks]
    assert len(found) == 3
    return dict(zip(("light", "dark", "print"), found, strict=True))


def contrast(first, second):
    """Of two colours, WCAG 2.2."""
    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour):
    if len(colour) == 4:
        colour = "#" + "".join(2 * digit for digit in colour[1:])
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(("scheme", "colours"), schemes().items())
def test_text_has_contrast(scheme, colours):
    """At least 4.5 to 1, WCAG 2.2 success criterion 1.4.3."""
    low = {
        (text, ground): round(contrast(colours[text], colours[ground]), 2)
        for text, grounds in ON.items()
        for ground in grounds
        if contrast(colours[text], colours[ground]) < 4.5
    }
    assert not low, scheme


def test_numbers_on_ranks_have_contrast():
    """The number of a rank stands on the colour of its group."""
    ramp = re.findall(r"\.c\d+ \{ background: (#\w+); color: (#\w+); \}", STYLE)
    assert len(ramp) == 16
    assert min(contrast(ground, text) for ground, text in ramp) >= 4.5


def test_nothing_is_loaded():
    """A page that reaches for a font or a picture shows nothing of it offline, and tells where it was opened."""
    script = files("trimtab.app.pages").joinpath("explain.js").read_text(encoding="utf-8")
    for words in ("url(", "@import", "@font-face"):
        assert words not in STYLE
    for words in (
        "fetch(",
        "XMLHttpRequest",
        "import(",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "eval(",
    ):
        assert words not in script
