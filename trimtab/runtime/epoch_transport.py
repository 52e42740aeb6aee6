"""What carries the tensors of a lowered plan while a run may be fenced: process groups of one epoch.

As in ``process_groups`` a rank never blocks inside the backend. Some of the backend's work gives no future (torch 2.13:
messages from rank to rank, reduce-scatter), so a thread waits for it; of an epoch that is over it is left behind, and ends when the peers let go of
their ends.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trimtab.runtime.lowering import Members
from trimtab.runtime.process_groups import Group, Interrupt
from trimtab.terms import RunError

Waiting = Callable[[str, Members], AbstractContextManager[None]]
"""A block in which a rank waits for others."""


class EpochTransport:
    """Carries tensors between the ranks of one epoch; see ``lowering.Transport``.

    Args:
        group: All ranks of the epoch, numbered from 0 as they stand in it.
        waiting: A block in which this rank waits: for a kind of collective, of a group.
    """

    def __init__(
        self, group: Group, waiting: Waiting = lambda kind, members: contextlib.nullcontext()
    ) -> None:
        self._all, self._waiting = group, waiting
        self._groups: dict[Members, Group] = {group.members: group}
        self._beside: dict[Members, _Beside] = {}
        self._waiter = _Waiter(group.interrupt)

    def open_groups(self, wanted: Sequence[Members]) -> None:
        """See Transport; only members of a group make it."""
        for members in wanted:
            if members not in self._groups and self._all.rank in members:
                with self._waiting("connect", members):
                    self._groups[members] = self._all.split(members)

    def drop(self) -> None:
        """Let go of everything in the background."""
        self._all.drop()
        for group in self._groups.values():
            group.drop()
        self._groups.clear()
        self._waiter.end()
        for beside in self._beside.values():
            beside.leave()
        self._beside.clear()

    def all_reduce(self, members: Members, tensor: Tensor, operation: str) -> None:
        """See Transport."""
        with self._waiting("all_reduce", members):
            self._groups[members].all_reduce(tensor, operation=operation)

    def reduce_scatter(self, members: Members, piece: Tensor, flat: Tensor, operation: str) -> None:
        """See Transport."""
        with self._waiting("reduce_scatter", members):
            work = self._groups[members].reduce_scatter(piece, flat, operation=operation)
            self._waiter.wait_for(work.wait)

    def all_gather(self, members: Members, found: Tensor, piece: Tensor) -> None:
        """See Transport."""
        with self._waiting("all_gather", members):
            self._groups[members].all_gather(found, piece)

    def all_to_all(
        self, members: Members, found: Tensor, flat: Tensor, splits: Sequence[Sequence[int]]
    ) -> None:
        """See Transport."""
        received, sent = (list(each) for each in splits)
        with self._waiting("all_to_all", members):
            self._groups[members].all_to_all(found, flat, output_splits=received, input_splits=sent)

    def send(self, target: int, tensor: Tensor, tag: int) -> "Message":
        """See Transport."""
        waiting = self._waiting("send", (self._all.rank, target))
        return Message(self._all.send(tensor, self._position(target), tag), self._waiter, waiting)

    def receive(self, source: int, found: Tensor, tag: int) -> "Message":
        """See Transport."""
        waiting = self._waiting("receive", (source, self._all.rank))
        return Message(self._all.receive(found, self._position(source), tag), self._waiter, waiting)

    def open_beside(self, wanted: Sequence[Members]) -> None:
        """See Transport; only members of a group make it."""
        for members in wanted:
            if members not in self._beside and self._all.rank in members:
                left = _Left()
                with self._waiting("connect", members):
                    group = self._all.split(members, beside=left.interrupt)
                self._beside[members] = _Beside(EpochTransport(group), left)

    def beside(self, members: Members) -> "EpochTransport":
        """See Transport."""
        return self._beside[members].transport

    def join(self, members: Members, work: Future[Any]) -> None:
        """See Transport; a fence ends this wait, and what waits on the other thread when this one is let go."""
        notify = self._all.interrupt.notify
        work.add_done_callback(lambda _: notify())
        with self._waiting("join", members):
            self._all.interrupt.wait_for(work.done)

    def _position(self, rank: int) -> int:
        return self._all.members.index(rank)


class LeftError(RunError):
    """The epoch was left while a thread beside the main one waited in it."""


class _Left:
    """Whether an epoch has been left: a thread that asks no agent learns it from here."""

    def __init__(self) -> None:
        self.interrupt = Interrupt()
        self._is_left = False
        self.interrupt.on_wake(self._check)

    def leave(self) -> None:
        """Whoever waits shall leave, too."""
        self._is_left = True
        self.interrupt.notify()

    def _check(self) -> None:
        if self._is_left:
            raise LeftError("the epoch was left")


@dataclass(frozen=True, slots=True)
class _Beside:
    """What a thread beside the main one uses."""

    transport: EpochTransport
    left: _Left

    def leave(self) -> None:
        """Its group goes in the background, its thread leaves whatever it waits for."""
        self.left.leave()
        self.transport.drop()


@dataclass(frozen=True, slots=True)
class Message:
    """A message on its way, to another rank or from one."""

    work: Any
    waiter: "_Waiter"
    waiting: AbstractContextManager[None]

    def wait(self) -> None:
        """Until it has left, or arrived."""
        with self.waiting:
            self.waiter.wait_for(self.work.wait)


class _Waiter:
    """Waits in the backend, so that the main thread need not."""

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_started = False

    def wait_for(self, wait: Callable[[], object]) -> None:
        """Block until ``wait`` returns or the epoch is over.

        Raises: What ``wait`` raises.
        """
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=_serve, args=(self._jobs,), daemon=True, name="message-waiter").start()
        outcome: list[Exception | None] = []
        notify = self._interrupt.notify

        def job() -> None:
            try:
                wait()
                outcome.append(None)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised again where it was waited for
                outcome.append(error)
            notify()

        self._jobs.put(job)
        self._interrupt.wait_for(lambda: bool(outcome))
        if (error := outcome.pop()) is not None:
            raise error

    def end(self) -> None:
        """No more jobs; the thread ends when the last one does."""
        self._jobs.put(None)


def _serve(jobs: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # It holds buffers, and the next one may be long in coming.
