"""Graphviz' language, written: identifiers and labels that no name can break out of."""

from collections.abc import Iterable, Iterator

from trimtab.app.pages.markup import visible


def quoted(words: str) -> str:
    r"""A text as a quoted string of the language; line ends stay line ends.

    Graphviz reads escapes and the entities of HTML in labels: both are taken apart.

    >>> quoted('a "b" & c')
    '"a \\"b\\" &amp; c"'
    """
    plain = visible(words).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + plain.replace("\n", "\\n") + '"'


def attributes(**values: str | float) -> str:
    """A list of attributes."""
    return f"[{', '.join(f'{name}={quoted(str(value))}' for name, value in values.items())}]"


def node(name: str, **values: str | float) -> str:
    """A node with its attributes."""
    return f"{quoted(name)} {attributes(**values)};"


def edge(tail: str, head: str, **values: str | float) -> str:
    """A directed edge with its attributes."""
    return f"{quoted(tail)} -> {quoted(head)} {attributes(**values)};"


def cluster(name: str, lines: Iterable[str], **values: str | float) -> Iterator[str]:
    """A box around some nodes."""
    yield f"subgraph {quoted(f'cluster_{name}')} {{"
    yield f"  graph {attributes(**values)};"
    yield from (f"  {line}" for line in lines)
    yield "}"


def digraph(lines: Iterable[str], **values: str | float) -> str:
    """A whole directed graph."""
    return "\n".join(
        ("digraph {", f"  graph {attributes(**values)};", *(f"  {line}" for line in lines), "}", "")
    )
