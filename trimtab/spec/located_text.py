"""Text that knows where each of its characters was written."""

from dataclasses import dataclass

from trimtab.terms import Span


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedText:
    """A text cut out of a document, such as the formulas in a YAML block.

    Args:
        text: The text as its reader sees it: without indentation, quotes or escapes.
        source: The document's name.
        document: The whole document.
        offsets: For each character of ``text`` its offset in ``document``.
    """

    text: str
    source: str
    document: str
    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.offsets) == len(self.text)

    @classmethod
    def whole(cls, text: str, *, source: str) -> "LocatedText":
        """A document that is its own text."""
        return cls(text=text, source=source, document=text, offsets=tuple(range(len(text))))

    def span(self, start: int, end: int) -> Span:
        """The place of ``text[start:end]``; at the end of the text, the place after its last character."""
        if not self.text:
            return Span(source=self.source, line=1, column=1)
        at = self.offsets[start] if start < len(self.text) else self.offsets[-1] + 1
        last = self.offsets[min(end, len(self.text)) - 1]
        line, column = position(self.document, at)
        return Span(source=self.source, line=line, column=column, length=max(1, last + 1 - at))


def position(document: str, offset: int) -> tuple[int, int]:
    """Line and column, both from 1, of a character of the document."""
    before = document[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def align(text: str, raw: str, *, start: int) -> tuple[int, ...]:
    """For each character of a YAML scalar's value, its offset in the document.

    ``raw`` is the scalar as written, beginning at ``start``: with indentation, quotes and folded lines.
    Exact for every character that stands for itself; an escape in double quotes is placed at the next
    character that matches.
    """
    offsets = []
    at = 0
    for character in text:
        if not character.isspace():
            at = max(raw.find(character, at), at)
        offsets.append(start + min(at, max(0, len(raw) - 1)))
        if not character.isspace() or raw[at : at + 1].isspace():
            at += 1
    return tuple(offsets)
