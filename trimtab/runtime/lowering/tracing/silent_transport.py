"""What carries nothing: what arrives is the tensor that was made to receive it."""

from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any

from torch import Tensor

from trimtab.runtime.lowering.transport import Members


class SilentTransport:
    """Stands in a world of any size for who carries tensors, without a process group and without peers.

    A rank that runs alone on ``meta`` tensors goes through the same calls as in a real world; a collective on a group
    that was never opened fails as it would there.
    """

    def __init__(self) -> None:
        self._groups: set[Members] = set()

    def open_groups(self, wanted: Sequence[Members]) -> None:
        """See Transport."""
        self._groups |= {*wanted}

    def all_reduce(self, members: Members, tensor: Tensor, operation: str) -> None:
        """See Transport; the own summand stands for the sum."""
        self._check(members)

    def reduce_scatter(self, members: Members, piece: Tensor, flat: Tensor, operation: str) -> None:
        """See Transport; the piece stays as it was made."""
        self._check(members)

    def all_gather(self, members: Members, found: Tensor, piece: Tensor) -> None:
        """See Transport; what is found stays as it was made."""
        self._check(members)

    def all_to_all(
        self, members: Members, found: Tensor, flat: Tensor, splits: Sequence[Sequence[int]]
    ) -> None:
        """See Transport; what is found stays as it was made."""
        self._check(members)

    def send(self, target: int, tensor: Tensor, tag: int) -> "Done":
        """See Transport; nothing leaves."""
        return Done()

    def receive(self, source: int, found: Tensor, tag: int) -> "Done":
        """See Transport; nothing arrives."""
        return Done()

    def open_beside(self, wanted: Sequence[Members]) -> None:
        """See Transport."""
        self.open_groups(wanted)

    def beside(self, members: Members) -> "SilentTransport":
        """See Transport."""
        return self

    def join(self, members: Members, work: Future[Any]) -> None:
        """See Transport."""
        wait([work])

    def _check(self, members: Members) -> None:
        assert members in self._groups, f"the group of {members} was never opened"


class Done:
    """A message that has left, or nothing that has arrived."""

    def wait(self) -> None:
        """At once."""
