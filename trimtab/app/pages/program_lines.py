"""A formula as a line of a program: its text, where it stands, and what is told of it."""

import re
from collections.abc import Iterator, Sequence

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.markup import Markup, element

_WORDS = re.compile(r"('[^']*'|\b[A-Z]{2,}\b)")
"""Texts in quotes, and words in capitals."""


def program_line(number: str, formula: Facts, told: Sequence[str], *, decides: str) -> Markup:
    """A line that a script can choose; what it decided names its number.

    Args:
        number: Of the line on the page.
        formula: Its text and place.
        told: Phrases that stand beneath it.
        decides: What is said aloud when it is chosen.
    """
    link = element(
        "a",
        element("code", *_keywords(formula["text"])),
        id=f"line-{number}",
        href=f"#line-{number}",
        class_="line",
        data_line=number,
        data_decides=decides,
        title=formula["at"],
    )
    place = element("li", formula["at"], class_="at")
    beneath = element("ul", place, *(element("li", phrase) for phrase in told), class_="deeds")
    return element("li", element("span", number, class_="gutter"), element("div", link, beneath))


def _keywords(formula: str) -> Iterator[Markup | str]:
    """The text with its keywords set off; what stands in quotes is left as it is."""
    for index, part in enumerate(_WORDS.split(formula)):
        is_keyword = index % 2 == 1 and not part.startswith("'")
        yield element("b", part) if is_keyword else part
