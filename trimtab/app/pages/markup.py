"""HTML and SVG built from values: what is not markup by type is escaped where it enters a page."""

import unicodedata
from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is markup already; only this module makes it."""

    __slots__ = ()


Child = Markup | str | int | None
"""What an element holds: markup goes in as it is, everything else as escaped text, None not at all."""

_VOID = frozenset({"meta", "input", "path", "rect", "line"})
"""Elements that hold nothing here; those of SVG are closed by themselves."""


def element(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An element of HTML or SVG.

    An underscore in an attribute's name stands for a hyphen; one at its end keeps clear of Python's words.
    True writes the bare attribute; None and False leave it out.

    >>> element("a", "1 < 2", href="#x", class_="line")
    '<a href="#x" class="line">1 &lt; 2</a>'
    """
    start = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}"
    if name in _VOID:
        assert not children, f"{name} holds nothing"
        return Markup(f"{start}/>")
    return Markup(f"{start}>{joined(children)}</{name}>")


def joined(children: Iterable[Child], separator: str = "") -> Markup:
    """Children one after the other."""
    return Markup(text(separator).join(text(child) for child in children if child is not None))


def text(child: Child) -> Markup:
    """A child as markup: escaped unless it is markup already."""
    if isinstance(child, Markup):
        return child
    return Markup(escape(visible(str(child))))


def trusted(source: str) -> Markup:
    """Markup, style or script of the package's own files, as it is; never a text that a user may have written."""
    return Markup(source)


def visible(words: str) -> str:
    """The text with U+FFFD for each character that shows nothing or turns the direction of reading.

    A name must not hide a part of itself, and half of a surrogate pair cannot be written as UTF-8.
    """
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_hidden(character) else character for character in words)


def _is_hidden(character: str) -> bool:
    if character.isprintable() or character in "\n\t":
        return False
    return unicodedata.category(character) != "Zs"


def _attribute(key: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.removesuffix("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(visible(str(value)))}"'
