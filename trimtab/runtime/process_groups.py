"""A process group of one epoch: collectives that a fence can interrupt.

gloo wakes nobody when a peer hangs, and only ring neighbours when one dies; and its own ``abort`` does not reach a
blocked wait (torch 2.13). So a rank never blocks inside a collective: it waits for "done or fenced", and when the
epoch is over it leaves work and group behind, to be torn down by a thread that nobody waits for. Buffers of an
abandoned collective are never used again: its threads may still write to them.
"""

import copy
import datetime as dt
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trimtab.runtime import compat
from trimtab.runtime.devices import capability
from trimtab.runtime.errors import CollectiveError

_TIMEOUT = dt.timedelta(minutes=30)
"""Never the way a hang is found: the agent's watchdog is."""


class Interrupt:
    """Wakes the main thread when work is done, or when the epoch ends. Set from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._raise: Callable[[], None] = lambda: None

    def notify(self) -> None:
        """Something changed: look again."""
        with self._changed:
            self._changed.notify_all()

    def on_wake(self, check: Callable[[], None]) -> None:
        """``check`` is called at every wake-up and raises when the wait must end."""
        self._raise = check

    def wait_for(self, is_done: Callable[[], bool]) -> None:
        """Block until ``is_done`` holds; whatever ``check`` raises passes through."""
        with self._changed:
            while True:
                self._raise()
                if is_done():
                    return
                self._changed.wait(timeout=1.0)


class Rendezvous:
    """A store that this rank offers to the next epoch; the first member's is used."""

    def __init__(self) -> None:
        self._store = compat.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._store.port)

    @property
    def store(self) -> Any:
        """The store itself, for the rank that offered it."""
        return self._store


class Tally:
    """Payload bytes that a rank has sent: those of a ring for the backend's collectives, as plans count them. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent_bytes = 0

    def add(self, sent_bytes: int) -> None:
        """Something is sent."""
        with self._lock:
            self._sent_bytes += sent_bytes

    def taken(self) -> int:
        """Since the last call."""
        with self._lock:
            found, self._sent_bytes = self._sent_bytes, 0
        return found


@dataclass(slots=True)
class _Backend:
    """The backend's group, and what was started in it last."""

    group: Any = None
    pending: Any = None


class Group:
    """The ranks of one epoch, connected. Not thread-safe: one thread makes all its calls, in one order.

    Args:
        members: Rank numbers in order of their position in the group.
        rank: This rank's number.
        store: A connected torch store; every group of every epoch has its own prefix in it. None for a group of one.
        label: Of the group inside its epoch.
        tally: Where bytes sent are counted; groups that are split off count in the same place.
    """

    def __init__(
        self,
        *,
        members: Sequence[int],
        rank: int,
        epoch: int,
        store: Any,
        kind: str,
        interrupt: Interrupt,
        label: str = "all",
        tally: "Tally | None" = None,
    ) -> None:
        self.members = tuple(members)
        self.rank = rank
        self.interrupt = interrupt
        self.tally = tally or Tally()
        self._origin = (epoch, store, kind)
        self._backend = _Backend()
        if self.size > 1:
            name = f"epoch-{epoch}/{label}"
            self._backend.group = _connect(self.members.index(rank), self.size, name, store, kind, interrupt)

    def by_position(self) -> "Group":
        """The same group, its members numbered from 0: of ranks that are positions of a plan."""
        found = copy.copy(self)
        found.rank = self.members.index(self.rank)
        found.members = tuple(range(self.size))
        return found

    def split(self, members: Sequence[int], label: str = "", *, beside: Interrupt | None = None) -> "Group":
        """A group of some of the ranks, this one among them, in the same epoch.

        Args:
            members: Which, in order of their positions in it.
            label: What tells it from other groups of the same ranks.
            beside: For a group that another thread makes all calls of: wakes that thread. It is a second one of these
                ranks; the present thread forms it.
        """
        epoch, store, kind = self._origin
        label = label + "-".join(map(str, members))
        found = Group(
            members=members,
            rank=self.rank,
            epoch=epoch,
            store=store,
            kind=kind,
            interrupt=self.interrupt,
            label=label if beside is None else f"beside-{label}",
            tally=self.tally,
        )
        found.interrupt = beside or self.interrupt
        return found

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.members)

    def all_to_all(
        self,
        output: Tensor,
        source: Tensor,
        *,
        output_splits: list[int],
        input_splits: list[int],
        launched: Callable[[], None] = lambda: None,
    ) -> None:
        """Send ``input_splits[i]`` elements to position i and receive ``output_splits[i]`` from it."""
        assert output.is_contiguous()
        assert source.is_contiguous()
        work = self._launch(
            "all_to_all",
            lambda g: g.alltoall_base(output, source, output_splits, input_splits, dist.AllToAllOptions()),
        )
        own = input_splits[self.members.index(self.rank)]
        self.tally.add((source.numel() - own) * source.element_size())
        self._wait("all_to_all", work, launched)

    def all_gather(
        self, output: Tensor, source: Tensor, *, launched: Callable[[], None] = lambda: None
    ) -> None:
        """Concatenate every rank's ``source`` into ``output``, in order of position."""
        assert output.is_contiguous()
        assert source.is_contiguous()
        work = self._launch("all_gather", lambda g: compat.all_gather(g, output, source))
        self.tally.add((self.size - 1) * source.nbytes)
        self._wait("all_gather", work, launched)

    def all_reduce(
        self, tensor: Tensor, *, operation: str = "sum", launched: Callable[[], None] = lambda: None
    ) -> None:
        """Sum or maximum over the ranks, in place, in the backend's own order. A group of one does nothing."""
        if self.size == 1:
            launched()
            return
        assert tensor.is_contiguous()
        options = dist.AllreduceOptions()
        options.reduceOp = _REDUCTIONS[operation]
        work = self._launch("all_reduce", lambda g: g.allreduce([tensor], options))
        piece = -(-tensor.numel() // self.size)
        self.tally.add(2 * (self.size - 1) * piece * tensor.element_size())
        self._wait("all_reduce", work, launched)

    def agree(self, holds: bool) -> bool:
        """Whether something holds on every rank; all must ask."""
        word = torch.tensor([int(not holds)], dtype=torch.int64)
        self.all_reduce(word, operation="max")
        return not word.item()

    def reduce_scatter(self, output: Tensor, source: Tensor, *, operation: str = "sum") -> Any:
        """Start the sum or maximum of the ranks in equal pieces, the own one into ``output``.

        Its work blocks when it is waited for, and gives no future (torch 2.13).
        """
        assert output.is_contiguous()
        assert source.is_contiguous()
        options = dist.ReduceScatterOptions()
        options.reduceOp = _REDUCTIONS[operation]
        self.tally.add((self.size - 1) * output.nbytes)
        return self._launch("reduce_scatter", lambda g: compat.reduce_scatter(g, output, source, options))

    def send(self, tensor: Tensor, position: int, tag: int) -> Any:
        """Start a message to a position; its work blocks when it is waited for, and gives no future."""
        assert tensor.is_contiguous()
        self.tally.add(tensor.nbytes)
        return self._launch("send", lambda g: g.send([tensor], position, tag))

    def receive(self, tensor: Tensor, position: int, tag: int) -> Any:
        """As ``send``, the other end."""
        assert tensor.is_contiguous()
        return self._launch("receive", lambda g: g.recv([tensor], position, tag))

    def broadcast(self, tensor: Tensor, *, source: int) -> None:
        """Copy the tensor of rank number ``source`` to everybody, in place."""
        if self.size == 1:
            return
        options = dist.BroadcastOptions()
        options.rootRank = self.members.index(source)
        options.rootTensor = 0
        self._wait(
            "broadcast", self._launch("broadcast", lambda g: g.broadcast([tensor], options)), lambda: None
        )

    def drop(self) -> None:
        """Let go of everything in the background: closing the sockets also wakes peers that did not notice yet."""
        left = [self._backend.group, self._backend.pending]
        self._backend.group = self._backend.pending = None
        threading.Thread(target=left.clear, daemon=True, name="group-teardown").start()

    def _launch(self, name: str, start: Callable[[Any], Any]) -> Any:
        try:
            return start(self._backend.group)
        except RuntimeError as error:
            raise CollectiveError(f"{name} could not start: {_first_line(error)}") from error

    def _wait(self, name: str, work: Any, launched: Callable[[], None]) -> None:
        self._backend.pending = work
        future = work.get_future()
        # Not a closure over self: released by a thread of the group, it would make that thread destroy the group,
        # which joins its threads, and so end the process (torch 2.13).
        notify = self.interrupt.notify
        future.add_done_callback(lambda _: notify())
        launched()
        self.interrupt.wait_for(future.done)
        try:
            future.wait()
        except RuntimeError as error:
            raise CollectiveError(f"{name} broke: {_first_line(error)}") from error
        self._backend.pending = None


_REDUCTIONS: Mapping[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def _connect(position: int, size: int, name: str, store: Any, kind: str, interrupt: Interrupt) -> Any:
    """Build the backend's group in a thread of its own, for a member that dies meanwhile would block the builder."""
    outcome: list[Any] = []

    def build() -> None:
        try:
            backend = getattr(dist, capability(kind).group_class)
            outcome.append(backend(compat.PrefixStore(name, store), position, size, _TIMEOUT))
        except RuntimeError as error:
            outcome.append(error)
        interrupt.notify()

    threading.Thread(target=build, daemon=True, name=f"form-{name}").start()
    interrupt.wait_for(lambda: bool(outcome))
    built = outcome.pop()
    if isinstance(built, RuntimeError):
        raise CollectiveError(f"{name} could not be formed: {_first_line(built)}") from built
    return built


def connect_store(host: str, port: int, *, listens: bool = False) -> Any:
    """The rendezvous of an epoch: a connection to it, or the thing itself if this rank ``listens``.

    Raises: CollectiveError if nobody listens there.
    """
    patience = dt.timedelta(seconds=10 if not listens else 60)
    try:
        return compat.TCPStore(host, port, is_master=listens, wait_for_workers=False, timeout=patience)
    except (RuntimeError, dist.DistError) as error:
        raise CollectiveError(f"no rendezvous at {host}:{port}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
