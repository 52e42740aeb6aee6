"""Explanations to draw, and a reader that sees a page as a browser does."""

import json
import os
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[2] / "golden"

VOID = {"meta", "input", "path", "rect", "line"}


@dataclass
class Element:
    """An element of a page."""

    tag: str
    attributes: dict[str, str | None]
    children: list["Element | str"] = field(default_factory=list)

    def all(self, tag=None, **attributes):
        """Every element inside, this one among them, that has a tag and attributes."""
        wanted = {name.removesuffix("_").replace("_", "-"): value for name, value in attributes.items()}
        if tag in (None, self.tag) and wanted.items() <= self.attributes.items():
            yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.all(tag, **attributes)

    def one(self, tag=None, **attributes):
        """The only such element."""
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def text(self):
        """All text inside."""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = Element("page", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {names}"
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID, f"{tag} cannot end by itself"
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"{tag} ends where {self.open[-1].tag} is open"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def read_page(text):
    """The tree of a page; an element that does not end where it should fails."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert len(reader.open) == 1, f"{reader.open[-1].tag} never ends"
    return reader.root


@pytest.fixture
def read():
    """Reads the text of a page into its tree."""
    return read_page


@pytest.fixture
def explanation():
    """Reads the explanation of a golden job by its name."""

    def load(name):
        path = GOLDEN / "plan" / "explanation" / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8"))

    return load


@pytest.fixture
def matches_golden():
    """Compares a text with a file of tests/golden/app/pages; TRIMTAB_REGENERATE=1 writes the file instead."""

    def check(name, text):
        path = GOLDEN / "app" / "pages" / name
        if os.environ.get("TRIMTAB_REGENERATE") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
