"""Places in texts, as the document writes them."""

from trimtab.terms import Span


def at(span: Span | None) -> str:
    """``file:line`` of a statement, or that the defaults decided."""
    return f"{span.source}:{span.line}" if span else "default"
