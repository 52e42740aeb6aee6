"""The documents of the repository, cut into what tests look at: blocks, tables, links."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a document."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def tracked_files() -> list[str]:
    """Files of the repository by path from its root; those that are new and not ignored count too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.splitlines() if (ROOT / name).is_file()})


def documents() -> list[str]:
    """Documents for people, by path from the root."""
    return [name for name in tracked_files() if name.endswith(".md")]


def blocks(language: str) -> list[Block]:
    """Every block in a language, in all documents."""
    return [
        Block(document=name, line=text.count("\n", 0, match.start()) + 1, language=match[1], text=match[2])
        for name in documents()
        for text in [read(name)]
        for match in _FENCE.finditer(text)
        if match[1] == language
    ]


def links(document: str) -> Iterator[str]:
    """Where the links of a document lead, blocks left out."""
    yield from _LINK.findall(_FENCE.sub("", read(document)))


def table_after(document: str, heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, without its header, cells stripped."""
    _, found, rest = read(document).partition(f"\n{heading}\n")
    assert found, f"{document} has no heading {heading!r}"
    lines = iter(rest.splitlines())
    rows = list(_first_table(lines))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[2:]]


def read(document: str) -> str:
    """The text of a document."""
    return (ROOT / document).read_text(encoding="utf-8")


def _first_table(lines: Iterator[str]) -> Iterator[str]:
    started = False
    for line in lines:
        if line.startswith("|"):
            started = True
            yield line
        elif started:
            return
