"""What carries tensors between ranks: the backend's collectives on groups of ranks, and messages from rank to rank.

`Wires` above it checks, names and counts; whoever carries may be torch's own process groups, groups that an epoch of a
run can leave behind, or nobody.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

Members = tuple[int, ...]
"""Ranks of a group, in order of rank."""


class Pending(Protocol):
    """A message that has been sent off and may not have left, or one that is expected and may not have arrived."""

    def wait(self) -> object:
        """Until it has left, and its tensor is free; or until it has arrived, and its tensor is filled."""


class Transport(Protocol):
    """Carries contiguous tensors. One thread makes all calls, all ranks make them in one order.

    Whatever it raises as a RuntimeError or ValueError is told with the name of the operation.
    """

    def open_groups(self, wanted: Sequence[Members]) -> None:
        """Make groups that are new; every rank names the same ones in one order."""

    def all_reduce(self, members: Members, tensor: Tensor, operation: str) -> None:
        """Sum or maximum over a group, in place."""

    def reduce_scatter(self, members: Members, piece: Tensor, flat: Tensor, operation: str) -> None:
        """The own one of equal pieces of the sum or maximum."""

    def all_gather(self, members: Members, found: Tensor, piece: Tensor) -> None:
        """Everybody's piece, in order of place."""

    def all_to_all(
        self, members: Members, found: Tensor, flat: Tensor, splits: Sequence[Sequence[int]]
    ) -> None:
        """What everybody has for this rank.

        Args:
            members: The group.
            found: Is filled, in order of place.
            flat: What this rank has for each place, in order.
            splits: Elements from each place, and elements for each place.
        """

    def send(self, target: int, tensor: Tensor, tag: int) -> Pending:
        """Send to a rank without waiting for it."""

    def receive(self, source: int, found: Tensor, tag: int) -> Pending:
        """Expect what a rank sends, without waiting for it."""

    # Beside the thread that makes all other calls.

    def open_beside(self, wanted: Sequence[Members]) -> None:
        """Make groups that are new, each for a thread of its own; every rank names the same ones in one order."""

    def beside(self, members: Members) -> "Transport":
        """What carries between the members of such a group alone, for one thread; it ends with this one."""

    def join(self, members: Members, work: Future[Any]) -> None:
        """Wait, on the thread that makes all other calls, until the thread of such a group has done something."""


class WorldTransport:
    """Torch's default process group and groups made from it; with one rank nothing is carried.

    Args:
        size: Of the world.
        groups: That are open; for a thread of its own the only one that it uses.
    """

    def __init__(self, size: int, groups: Mapping[Members, Any] | None = None) -> None:
        self._size = size
        self._groups = dict(groups or {})
        self._beside: dict[Members, Any] = {}
        # Messages of a thread of its own go through its group, where no other thread's can be taken for them.
        self._messages = next(iter(self._groups.values()), None)

    def open_groups(self, wanted: Sequence[Members]) -> None:
        """See Transport."""
        for members in wanted:
            if len(members) > 1 and members not in self._groups:
                is_world = members == tuple(range(self._size))
                self._groups[members] = dist.group.WORLD if is_world else dist.new_group(list(members))

    def all_reduce(self, members: Members, tensor: Tensor, operation: str) -> None:
        """See Transport."""
        dist.all_reduce(tensor, _REDUCTIONS[operation], group=self._groups[members])

    def reduce_scatter(self, members: Members, piece: Tensor, flat: Tensor, operation: str) -> None:
        """See Transport."""
        dist.reduce_scatter_single(piece, flat, _REDUCTIONS[operation], group=self._groups[members])

    def all_gather(self, members: Members, found: Tensor, piece: Tensor) -> None:
        """See Transport."""
        dist.all_gather_single(found, piece, group=self._groups[members])

    def all_to_all(
        self, members: Members, found: Tensor, flat: Tensor, splits: Sequence[Sequence[int]]
    ) -> None:
        """See Transport."""
        received, sent = (list(each) for each in splits)
        dist.all_to_all_single(found, flat, received, sent, group=self._groups[members])

    def send(self, target: int, tensor: Tensor, tag: int) -> Pending:
        """See Transport."""
        work = dist.isend(tensor, target, self._messages, tag)
        assert work is not None, "this rank is a member of the world"
        return work

    def receive(self, source: int, found: Tensor, tag: int) -> Pending:
        """See Transport."""
        work = dist.irecv(found, source, self._messages, tag)
        assert work is not None, "this rank is a member of the world"
        return work

    def open_beside(self, wanted: Sequence[Members]) -> None:
        """See Transport."""
        for members in wanted:
            if members not in self._beside:
                self._beside[members] = dist.new_group(list(members))

    def beside(self, members: Members) -> "WorldTransport":
        """See Transport."""
        return WorldTransport(self._size, {members: self._beside[members]})

    def join(self, members: Members, work: Future[Any]) -> None:
        """See Transport."""
        wait([work])


_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
