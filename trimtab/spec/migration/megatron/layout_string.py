"""Megatron's pipeline layout: which layers stand in which stage, as one string.

``E`` is the embedding, ``t`` a layer, ``m`` a head for later tokens, ``L`` the loss; ``|`` ends a stage; ``t*3``
and ``(tt|)*29`` repeat; commas are decoration. Stages go round the pipeline: with 8 ranks the ninth stage is
the second of rank 0.
"""

import re

from trimtab.spec.migration.settings import MigrationError

MAX_SYMBOLS = 100_000
"""Longest layout that is written out: no network has as many layers."""

_GROUP = re.compile(r"\(([^()]*)\)\*(\d+)")
_SYMBOL = re.compile(r"([^()*\d|])\*(\d+)")
_KNOWN = frozenset("EtmL|")


def layers_of_stages(layout: str) -> tuple[int, ...]:
    """How many layers each stage holds, in the order of the layers.

    >>> layers_of_stages("Et*3|(tt|)*2,m|L")
    (3, 2, 2, 0, 0)

    Raises: MigrationError for a symbol that is none, or a layout too long to write out.
    """
    text = _repeat(_GROUP, _bare(layout))
    text = _repeat(_SYMBOL, text)
    unknown = sorted(set(text) - _KNOWN)
    if unknown:
        raise MigrationError(
            f"the pipeline layout {layout!r} holds {', '.join(map(repr, unknown))}; it is made of E, t, m, L, | and "
            "repetitions such as t*3 and (tt|)*29"
        )
    return tuple(stage.count("t") for stage in text.split("|"))


def _bare(layout: str) -> str:
    """Without commas, blanks and the backslashes that a shell needs."""
    return re.sub(r"[,\s\\]", "", layout)


def _repeat(pattern: re.Pattern[str], text: str) -> str:
    length = len(text) + sum(len(symbols) * int(times[:9]) for symbols, times in pattern.findall(text))
    if length > MAX_SYMBOLS:
        raise MigrationError(f"the pipeline layout is longer than {MAX_SYMBOLS} symbols")
    return pattern.sub(lambda match: match[1] * int(match[2]), text)
