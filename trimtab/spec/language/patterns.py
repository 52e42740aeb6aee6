"""Patterns of LIKE: ``%`` is any text, ``_`` is any one character.

Cut at ``%`` into pieces of fixed length, of which the first must stand at the beginning, the last at the end,
and the others in order between them, each as early as it can. So the time is bounded by the length of the
text times the length of the pattern, whatever the pattern.
"""

import re
from collections.abc import Callable, Sequence


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Whether a text matches; letters must have the case of the pattern.

    >>> matches = compile_pattern("layers.%.weight_")
    >>> matches("layers.3.mlp.weights"), matches("layers.3.mlp.weight")
    (True, False)
    """
    first, *others = pattern.split("%")
    if not others:
        whole = _piece(first)
        return lambda text: len(text) == len(first) and whole.match(text) is not None
    *middle, last = others
    return _Spaced(first, [piece for piece in middle if piece], last).matches


class _Spaced:
    """Pieces with any text between them."""

    def __init__(self, first: str, middle: Sequence[str], last: str) -> None:
        self._first, self._first_length = _piece(first), len(first)
        self._middle = [_piece(piece) for piece in middle]
        self._last, self._last_length = _piece(last), len(last)

    def matches(self, text: str) -> bool:
        end = len(text) - self._last_length
        if end < self._first_length or not self._first.match(text) or not self._last.match(text, end):
            return False
        at = self._first_length
        for piece in self._middle:
            found = piece.search(text, at, end)
            if found is None:
                return False
            at = found.end()
        return True


def _piece(piece: str) -> re.Pattern[str]:
    """A text of fixed length in which ``_`` is any character."""
    return re.compile(re.escape(piece).replace("_", "."), re.DOTALL)
