"""How the language's errors are worded and how many of them are listed."""

import difflib
from collections.abc import Iterable, Sequence
from itertools import islice

from trimtab.spec.errors import Problem

MAX_PROBLEMS = 100
"""Problems of one text that are listed; a text with more of them is not a strategy."""


def first_problems(problems: Iterable[Problem]) -> list[Problem]:
    """The problems in order of place, or the first that were found and a last one that says there are more."""
    iterator = iter(problems)
    found = in_order(islice(iterator, MAX_PROBLEMS))
    more = next(iterator, None)
    if more is not None:
        found.append(
            Problem(span=more.span, message=f"more is wrong from here on; these are the first {MAX_PROBLEMS}")
        )
    return found


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """The problems by text, line and column."""
    return sorted(problems, key=lambda problem: (problem.span.source, problem.span.line, problem.span.column))


def did_you_mean(word: str, names: Sequence[str], *, quote: str = "'") -> str:
    """``  Did you mean 'dp'?``, or nothing if no name is near; case is ignored.

    Short names are near if half of their letters stand in order, and nearest if the letters are the same.

    >>> did_you_mean("pd", ["dp", "tp"])
    "  Did you mean 'dp'?"
    """
    by_folded = {name.casefold(): name for name in names}
    folded = word.casefold()
    swapped = [name for name in by_folded if sorted(name) == sorted(folded)]
    close = swapped or difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.5)
    return f"  Did you mean {quote}{by_folded[close[0]]}{quote}?" if close else ""


def listed(words: Sequence[str], *, last: str = " and ") -> str:
    """Words with commas between them, and a word before the last.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return last.join(filter(None, (", ".join(words[:-1]), words[-1])))
