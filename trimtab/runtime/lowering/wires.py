"""How do tensors get from rank to rank, and how many bytes did each send?

All traffic of a lowered plan goes through here: tensors are made contiguous, types and shapes are checked, the
operation is named when it breaks, and what is sent is counted. A message of our own is counted as it leaves; a
collective of the backend as the ring that a plan counts it for.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trimtab.plan.collectives import Request, sends_of
from trimtab.plan.program import OperatorKind
from trimtab.runtime.errors import CollectiveError
from trimtab.runtime.lowering.packing import in_one
from trimtab.runtime.lowering.transport import Pending, Transport, WorldTransport

_TYPES = frozenset(
    {torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8}
)
"""What gloo sends; float8 would fail there and leave the group unusable (torch 2.13)."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What is sent: what a plan's traffic is compared by."""

    block: str
    phase: str
    kind: str
    tensors: tuple[str, ...]
    axes: tuple[str, ...]
    route: str

    def __str__(self) -> str:
        """For errors."""
        return f"{self.kind} of {', '.join(self.tensors)} over {', '.join(self.axes)} ({self.block}, {self.phase})"


@dataclass(kw_only=True, slots=True)
class Count:
    """How often a rank took part, and the bytes that it sent."""

    runs: int = 0
    sent_bytes: int = 0


@dataclass(kw_only=True, slots=True)
class Posted:
    """Messages that have been sent off and may not have arrived."""

    pending: list[tuple[Pending, Tensor]] = field(default_factory=list)

    def wait(self) -> None:
        """Until all have left; their tensors are free then."""
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """A tensor on its way from another rank; ``tensor`` is filled when ``message`` has been waited for."""

    what: Sent
    tensor: Tensor
    message: Pending


class Wires:
    """The connections of one rank. One thread makes all calls, all ranks make them in one order.

    A thread that sends beside it has wires of its own, see ``beside``.

    Args:
        rank: Own.
        size: Of the world; 1 needs no process group.
        is_connected: Whether torch's own process groups carry what is sent; else ``transport`` is set later.
    """

    def __init__(self, rank: int, size: int, *, is_connected: bool = True) -> None:
        self.rank = rank
        self.size = size
        self.counts: defaultdict[Sent, Count] = defaultdict(Count)
        self.posted = Posted()
        self._transport: Transport | None = WorldTransport(size) if is_connected else None

    def open_groups(self, wanted: Iterable[tuple[int, ...]]) -> None:
        """Make the process groups that collectives of the backend need; every rank names the same ones in one order."""
        if self._transport is not None:
            self._transport.open_groups([members for members in wanted if len(members) > 1])

    # Beside the thread that makes all other calls.

    def open_beside(self, wanted: Iterable[tuple[int, ...]]) -> None:
        """Make a group of its own for each thread that sends beside this one; every rank names the same ones in one order."""
        if self._transport is not None:
            self._transport.open_beside(list(wanted))

    def beside(self, members: tuple[int, ...]) -> "Wires":
        """The wires of such a thread; what it sends is counted here."""
        found = Wires(self.rank, self.size, is_connected=False)
        found.counts, found.transport = self.counts, self.transport.beside(members)
        return found

    def join(self, what: Sent, members: tuple[int, ...], work: Future[Any]) -> None:
        """Wait until such a thread has sent something."""
        with _Naming(what):
            self.transport.join(members, work)

    @property
    def transport(self) -> Transport:
        """What carries tensors."""
        assert self._transport is not None, "ranks are connected before they send"
        return self._transport

    @transport.setter
    def transport(self, transport: Transport) -> None:
        self._transport = transport

    def line(self, what: Sent, members: Sequence[int]) -> "Line":
        """The wires between some ranks, for one run of a collective."""
        self.counts[what].runs += 1
        return Line(self, what, tuple(members))

    def post(self, what: Sent, target: int, tensor: Tensor, *, tag: int) -> None:
        """Send a tensor to a rank without waiting for it."""
        count = self.counts[what]
        count.runs += 1
        count.sent_bytes += tensor.numel() * tensor.element_size()
        tensor = _sendable(tensor, what)
        with _Naming(what):
            self.posted.pending.append((self.transport.send(target, tensor, tag), tensor))

    def expect(
        self, what: Sent, source: int, shape: Sequence[int], dtype: torch.dtype, *, tag: int
    ) -> "Expected":
        """A tensor that a rank posts: it need not wait until this rank asks for it."""
        found = torch.empty(tuple(shape), dtype=dtype)
        with _Naming(what):
            return Expected(what=what, tensor=found, message=self.transport.receive(source, found, tag))

    def take(self, expected: "Expected") -> Tensor:
        """A tensor that is expected, once it has arrived."""
        with _Naming(expected.what):
            expected.message.wait()
        return expected.tensor


class Line:
    """The wires between the members of one group, named by their places in it.

    Args:
        wires: Of this rank.
        what: Is sent.
        members: Ranks, in order of place.
        order: The places that take part, where a route works on some of them; all by default.
    """

    def __init__(
        self, wires: Wires, what: Sent, members: tuple[int, ...], order: Sequence[int] | None = None
    ) -> None:
        self._wires, self._what, self._members = wires, what, members
        self.order = tuple(order) if order is not None else tuple(range(len(members)))
        self.place = self.order.index(members.index(wires.rank))

    @property
    def size(self) -> int:
        """Of the group."""
        return len(self.order)

    def among(self, places: Sequence[int]) -> "Line":
        """The same wires between some of the places, this one among them."""
        return Line(self._wires, self._what, self._members, [self.order[place] for place in places])

    # Messages of our own.

    def send(self, target: int, tensor: Tensor) -> Posted:
        """Send off a tensor to a place."""
        tensor = _sendable(tensor, self._what)
        self._count(tensor.numel() * tensor.element_size())
        with _Naming(self._what):
            return Posted(pending=[(self._transport.send(self._rank(target), tensor, 0), tensor)])

    def receive(self, source: int, like: Tensor) -> Tensor:
        """What a place sends, of the shape and type of another tensor."""
        found = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        with _Naming(self._what):
            self._transport.receive(self._rank(source), found, 0).wait()
        return found

    def swap(self, target: int, tensor: Tensor, source: int, like: Tensor) -> Tensor:
        """Send to one place while receiving from another."""
        sent = self.send(target, tensor)
        found = self.receive(source, like)
        sent.wait()
        return found

    # Collectives of the backend.

    def all_reduce(self, flat: Tensor, operation: str) -> Tensor:
        """The sum or maximum over all places, in place of what was given."""
        total = _sendable(flat, self._what)
        piece = -(-flat.numel() // self.size)
        self._count_native(OperatorKind.ALL_REDUCE, flat, piece)
        with _Naming(self._what):
            self._transport.all_reduce(self._group, total, operation)
        return total

    def reduce_scatter(self, chunks: Sequence[Tensor], operation: str) -> Tensor:
        """The sum of what all places have for this one."""
        flat = _sendable(in_one(chunks), self._what)
        piece = torch.empty_like(chunks[0])
        self._count_native(OperatorKind.REDUCE_SCATTER, flat, piece.numel())
        with _Naming(self._what):
            self._transport.reduce_scatter(self._group, piece, flat, operation)
        return piece

    def all_gather(self, piece: Tensor) -> list[Tensor]:
        """Every place's piece, in order of place."""
        piece = _sendable(piece, self._what)
        found = torch.empty((self.size, piece.numel()), dtype=piece.dtype, device=piece.device)
        self._count_native(OperatorKind.ALL_GATHER, piece, piece.numel())
        with _Naming(self._what):
            self._transport.all_gather(self._group, found.view(-1), piece)
        return list(found.unbind())

    def all_to_all(self, chunks: Sequence[Tensor]) -> list[Tensor]:
        """What every place has for this one; all chunks are of one size."""
        flat = _sendable(torch.cat(list(chunks)), self._what)
        found = torch.empty_like(flat)
        self._count_native(OperatorKind.ALL_TO_ALL, flat, chunks[0].numel())
        with _Naming(self._what):
            even = [chunk.numel() for chunk in chunks]
            self._transport.all_to_all(self._group, found, flat, (even, even))
        return list(found.view(self.size, -1).unbind())

    def exchange(self, chunks: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """What every place has for this one, of any size.

        Args:
            chunks: For each place; one of them may be empty.
            sizes: Elements from each place.
        """
        flat = _sendable(torch.cat(list(chunks)), self._what)
        found = torch.empty(sum(sizes), dtype=flat.dtype, device=flat.device)
        given = [chunk.numel() for chunk in chunks]
        self._count((flat.numel() - given[self.place]) * flat.element_size())
        with _Naming(self._what):
            self._transport.all_to_all(self._group, found, flat, (sizes, given))
        return list(torch.split(found, list(sizes)))

    def agree_on_largest(self, number: Tensor) -> Tensor:
        """The largest of all places' numbers: what whole numbers are scaled by; four bytes that plans do not count."""
        found = number.detach().float().clone()
        with _Naming(self._what):
            self._transport.all_reduce(self._group, found, "max")
        return found

    @property
    def _transport(self) -> Transport:
        return self._wires.transport

    @property
    def _group(self) -> tuple[int, ...]:
        assert self.size == len(self._members), "routes on some of the places send messages of their own"
        return self._members

    def _rank(self, place: int) -> int:
        return self._members[self.order[place]]

    def _count_native(self, kind: OperatorKind, flat: Tensor, piece: int) -> None:
        places = ((0, None, 0),) * self.size
        request = Request(kind=kind, elements=flat.numel(), piece=piece, places=places)
        self._count(_sent_elements(request, self.place) * flat.element_size())

    def _count(self, sent_bytes: int) -> None:
        self._wires.counts[self._what].sent_bytes += sent_bytes


@functools.lru_cache(maxsize=4096)
def _sent_elements(request: Request, place: int) -> int:
    """What a place sends in a collective of the backend, in elements."""
    return sum(send.elements for send in sends_of("native", request) if send.source == place)


def _sendable(tensor: Tensor, what: Sent) -> Tensor:
    """The tensor as a backend may have it: contiguous, of a type that it sends."""
    assert tensor.dtype in _TYPES, f"{what}: {tensor.dtype} cannot be sent"
    return tensor.detach().contiguous()


class _Naming:
    """Names the operation in whatever the backend raises."""

    def __init__(self, what: Sent) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, RuntimeError | ValueError):
            raise CollectiveError(f"{self._what}: {error}") from error


Combine = Callable[[Tensor, Tensor], Tensor]
"""Sum or maximum of two tensors of one shape, written over the second."""
