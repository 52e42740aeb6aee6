"""What a rank sends while it computes: one thread for each group of ranks, over a process group of its own.

Ranks of one group hold the same stages and run the same program, so each starts the same things on its thread in the same
order. Nobody waits for ever: of all ranks of a place in the pipeline take the one that has come least far. Whatever it waits
for, all others have started, and what stands before it on its thread too.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from trimtab.runtime.lowering.collectives import Collectives
from trimtab.runtime.lowering.lanes import Lane
from trimtab.runtime.lowering.scopes import Observer
from trimtab.runtime.lowering.wires import Sent, Wires

Members = tuple[int, ...]
"""Ranks of a group that take part, in order of rank."""

_Result = TypeVar("_Result")


class Beside:
    """The threads of one rank. All calls are made by the thread that computes, in an order that is that of the plan.

    Args:
        collectives: Of the rank.
        groups: That send beside the computation, in an order that is the same on all ranks.
        observe: Says whether there are to be threads.
    """

    def __init__(self, collectives: Collectives, groups: Sequence[Members], observe: Observer) -> None:
        self._collectives, self._groups, self._observe = collectives, tuple(groups), observe
        self._lanes: dict[Members, Lane] = {}
        self._wires: dict[Members, Wires] = {}
        self.connect()

    def connect(self) -> None:
        """The ranks are connected anew; what was under way is left behind."""
        for lane in self._lanes.values():
            lane.end()
        self._lanes.clear()
        self._wires.clear()
        self._collectives.wires.open_beside(self._groups)

    def collectives(self, members: Members) -> Collectives:
        """What a group's thread runs its collectives with, until the ranks are connected anew.

        A rank that is alone in its group sends nothing, and has no group of its own for it.
        """
        if len(members) == 1:
            return self._collectives
        if members not in self._wires:
            self._wires[members] = self._collectives.wires.beside(members)
        return replace(self._collectives, wires=self._wires[members])

    def start(self, members: Members, act: Callable[[], _Result]) -> Future[_Result]:
        """Let a group's thread do something after all that it was given before."""
        if self._observe.wants_one_thread:
            return _done(act)
        if members not in self._lanes:
            self._lanes[members] = Lane(f"beside-{'-'.join(map(str, members))}")
        return self._lanes[members].start(act)

    def join(self, what: Sent, members: Members, work: Future[_Result]) -> _Result:
        """What a group's thread gives, once it is there.

        Args:
            what: It sends.
            members: Of the group.
            work: As ``start`` gave it.

        Raises: CollectiveError if it broke.
        """
        self._collectives.wires.join(what, members, work)
        return work.result()


def _done(act: Callable[[], _Result]) -> Future[_Result]:
    work: Future[_Result] = Future()
    work.set_result(act())
    return work


@dataclass(frozen=True, slots=True)
class Coming:
    """What a thread is going to give, by place among what it gives."""

    work: Future[list[Any]]
    place: int

    def result(self) -> Any:
        """Wait for it; on another thread than the one that computes."""
        return self.work.result()[self.place]


def arrived(given: Sequence[Any]) -> list[Any]:
    """What is given to a thread, with what other threads had still to give."""
    return [each.result() if isinstance(each, Coming) else each for each in given]
