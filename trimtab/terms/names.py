"""Names that users type, and the known name that they probably meant."""

import difflib
from collections.abc import Iterable


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``name``, else the first that begins with it, else None.

    Case is ignored: ``GPT2-124M`` is close to ``gpt2-124m``.

    >>> nearest_name("lama2-7b", ["llama2-7b", "gpt2-124m"])
    'llama2-7b'
    >>> nearest_name("gpt", ["llama2-7b", "gpt2-124m"])
    'gpt2-124m'
    """
    by_folded = {candidate.casefold(): candidate for candidate in known}
    folded = name.casefold()
    closest = difflib.get_close_matches(folded, by_folded, n=1)
    beginnings = (candidate for candidate in by_folded if folded and candidate.startswith(folded))
    nearest = closest[0] if closest else next(beginnings, None)
    return by_folded[nearest] if nearest is not None else None
