"""Which documents are held out: decided by name and seed, so neither order nor size of the data matters.

A document that is held out stays held out when others are added, removed or reordered.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from trimtab.runtime.data.errors import DataError

_NUM_KEYS = 2**64


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutSplit:
    """The documents whose key is below a bound.

    Args:
        seed: Any integer.
        bound: From 0 (nothing is held out) to 2**64 (everything is).
    """

    seed: int
    bound: int

    def is_held_out(self, name: str) -> bool:
        """Whether the document of this name is kept for evaluation."""
        return _key(self.seed, name) < self.bound


def split_documents(names: Iterable[str], *, fraction: float, seed: int) -> HeldOutSplit:
    """The split that holds out about ``fraction`` of the documents, and at least one of them if fraction > 0.

    Among few documents chance may leave one side empty; then the one document nearest to the bound changes
    sides. Names are read only until both sides have one.

    Raises: DataError if the fraction is not in [0, 1), or there are too few documents for two sides.
    """
    if not 0 <= fraction < 1:
        raise DataError(f"data.held_out: {fraction} is not a fraction; it must be at least 0 and less than 1")
    bound = int(fraction * _NUM_KEYS)
    if fraction == 0:
        return HeldOutSplit(seed=seed, bound=0)
    num_documents = 0
    lowest, highest = _NUM_KEYS, -1
    for num_documents, name in enumerate(names, start=1):  # noqa: B007 - counted for the message
        key = _key(seed, name)
        lowest, highest = min(lowest, key), max(highest, key)
        if lowest < bound <= highest:
            return HeldOutSplit(seed=seed, bound=bound)
    if lowest >= highest:
        raise DataError(
            f"data.held_out: {fraction} of the documents cannot be held out, as data.text gives {num_documents} document(s) "
            "and both sides need one; give more files (a text file is one document) or a .jsonl with one document a "
            "line, or write held_out: 0"
        )
    return HeldOutSplit(seed=seed, bound=highest if highest < bound else lowest + 1)


def _key(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(errors="surrogateescape"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")
