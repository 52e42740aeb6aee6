"""Do all ranks gather the same layers in the same order? If they did not, they would take one for the other, or hang."""

import zlib

import torch

from trimtab.runtime.stored.carrier import Carrier
from trimtab.terms import InputError


class Order:
    """What one kind of microbatch takes of all ranks, one after the other.

    The first microbatch of an epoch is compared with the other ranks', collective by collective; later ones with the
    first, which costs nothing.
    """

    def __init__(self) -> None:
        self._known: list[str] | None = None
        self._taken: list[str] = []

    def begin(self) -> None:
        """A microbatch begins."""
        self._taken = []

    def take(self, what: str, carrier: Carrier) -> None:
        """Before a collective.

        Raises: InputError if other ranks, or the first microbatch, take another one here.
        """
        self._compare(what, carrier)
        self._taken.append(what)

    def end(self, carrier: Carrier) -> None:
        """The microbatch is done.

        Raises: As ``take``.
        """
        self._compare(_END, carrier)
        self._known = self._taken

    def _compare(self, what: str, carrier: Carrier) -> None:
        if self._known is None:
            own = zlib.crc32(what.encode())
            codes = carrier.gather(torch.tensor([own], dtype=torch.int64)).flatten().tolist()
            if set(codes) != {own}:
                other = next(place for place, code in enumerate(codes) if code != own)
                raise _refusal(f"this rank would {what}, rank {carrier.group.members[other]} something else")
            return
        place = len(self._taken)
        before = self._known[place] if place < len(self._known) else _END
        if before != what:
            raise _refusal(f"this microbatch would {what}, the first one would {before}")


_END = "end"


def _refusal(found: str) -> InputError:
    return InputError(
        f"which layers are used depends on the samples: {found}. Where parameters are stored in pieces, every microbatch "
        "uses the same layers in the same order.\n"
        "  Use every layer always, or leave parameters whole: STORE grads, states OVER …"
    )
