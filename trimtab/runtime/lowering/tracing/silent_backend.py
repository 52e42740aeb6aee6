"""A backend that sends nothing: what arrives is the tensor that was made to receive it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor


class SilentBackend:
    """Stands for ``torch.distributed`` in ``Wires`` of any world size, without a process group and without peers.

    A rank that runs alone on ``meta`` tensors goes through the same calls as in a real world; groups are what names
    them, so that a collective on a group that was never opened fails as it would there.
    """

    def __init__(self, size: int) -> None:
        self.group = SimpleNamespace(WORLD=tuple(range(size)))

    def new_group(self, members: Sequence[int]) -> tuple[int, ...]:
        """The group itself."""
        return tuple(members)

    def isend(self, tensor: Tensor, target: int, *, tag: int = 0) -> "Done":
        """Nothing leaves."""
        return Done()

    def irecv(self, tensor: Tensor, source: int, *, tag: int = 0) -> "Done":
        """Nothing arrives."""
        return Done()

    def all_reduce(self, tensor: Tensor, operation: Any, *, group: Any) -> None:
        """The own summand stands for the sum."""

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, operation: Any, *, group: Any) -> None:
        """The output stays as it was made."""

    def all_gather_single(self, output: Tensor, tensor: Tensor, *, group: Any) -> None:
        """The output stays as it was made."""

    def all_to_all_single(self, output: Tensor, tensor: Tensor, *, group: Any) -> None:
        """The output stays as it was made."""


class Done:
    """Work that is done."""

    def wait(self) -> None:
        """At once."""
