"""Names that users type, and the known name that they probably meant."""

import difflib
from collections.abc import Iterable


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``name``, or None if none is close.

    Case is ignored: ``GPT2-124M`` is close to ``gpt2-124m``.

    >>> nearest_name("lama2-7b", ["llama2-7b", "gpt2-124m"])
    'llama2-7b'
    """
    by_folded = {candidate.casefold(): candidate for candidate in known}
    closest = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[closest[0]] if closest else None
