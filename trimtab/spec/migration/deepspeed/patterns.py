"""Regular expressions over names as LIKE patterns, where one says what the other does, and back."""

import itertools
import re
from collections.abc import Iterator


class PatternError(ValueError):
    """A regular expression that LIKE cannot say."""


_PART = re.compile(
    r"(?P<any>\.[*+]\??|\\d\+|\[0-9\]\+|\[\^\.\]\+)"
    r"|\\(?P<escaped>[.\-_])"
    r"|\[(?P<letters>[A-Za-z0-9_]+)\](?![*+?{])"
    r"|\((?:\?:)?(?P<words>[A-Za-z0-9_|]+)\)(?![*+?{])"
    r"|(?P<plain>[A-Za-z0-9_\-]+)(?![*+?{])"
    r"|(?P<one>\.)(?![*+?{])"
)


def like_patterns(expression: str) -> list[str]:
    r"""The LIKE patterns that together match what the expression matches from the start of a name.

    >>> like_patterns(r".*\.[qk]_proj\.weight$")
    ['%.q_proj.weight', '%.k_proj.weight']
    >>> like_patterns(r".*\.experts\.\d+\.w2\.weight$")
    ['%.experts.%.w2.weight']

    Raises: PatternError if the expression says what LIKE cannot.
    """
    text = expression.removeprefix("^")
    is_anchored = text.endswith("$") and not text.endswith("\\$")
    parts = list(_parts(text.removesuffix("$") if is_anchored else text, expression))
    tail = [] if is_anchored or (parts and parts[-1] == ("%",)) else [("%",)]
    return ["".join(choice) for choice in itertools.product(*parts, *tail)]


def regular_expression(pattern: str) -> str:
    r"""The expression that matches, from the start of a name, what a LIKE pattern matches.

    >>> regular_expression("%.q_proj.weight"), regular_expression("%lm_head%")
    ('.*\\.q.proj\\.weight$', '.*lm.head.*')
    """
    signs = {"%": ".*", "_": "."}
    text = "".join(signs.get(sign) or re.escape(sign) for sign in pattern)
    return text if text.endswith(".*") else f"{text}$"


def _parts(text: str, expression: str) -> Iterator[tuple[str, ...]]:
    """The alternatives of each part, from left to right."""
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise PatternError(f"LIKE cannot say the pattern {expression}")
        position = match.end()
        if match["any"]:
            yield ("%",)
        elif match["letters"]:
            yield tuple(match["letters"])
        elif match["words"]:
            yield tuple(match["words"].split("|"))
        else:
            yield ("_" if match["one"] else match["escaped"] or match["plain"],)
