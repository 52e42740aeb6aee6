"""Sums of gradients that run while the backward pass goes on.

Each process group has a thread and a second group of its own. Which sums run there, and in which order on each thread,
follows from the plan, so it is the same on all ranks of a group. Nobody waits for ever: of all sums that have not ended, take
the first in the order of the plan. On each of its ranks it is the first on its thread, what it takes has been made, and the
thread that computes waits for no sum before it has started them all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from torch import Tensor

from trimtab.plan.early_sums import EarlySum, early_sums
from trimtab.plan.meshes import groups
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import Action
from trimtab.plan.program import Operator, Phase
from trimtab.runtime.lowering.collectives import Collectives
from trimtab.runtime.lowering.gatherings import Gatherings
from trimtab.runtime.lowering.lanes import Lane
from trimtab.runtime.lowering.scopes import Observer, Scope
from trimtab.runtime.lowering.share_sums import Leaves, ShareSums
from trimtab.runtime.lowering.sites import Stages, taking_part
from trimtab.runtime.lowering.summing import Summand, Summing
from trimtab.runtime.lowering.wires import Sent

Members = tuple[int, ...]
"""Ranks of a group that take part, in order of rank."""

Left = Tensor | Leaves
"""What microbatches have left of a gradient: a sum, or one for each share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Planned:
    """An early sum of this rank.

    Args:
        operator: Of the update.
        members: Ranks that take part with this one.
        what: Is sent.
    """

    operator: Operator
    members: Members
    what: Sent


@dataclass(frozen=True, slots=True)
class _Coming:
    """What an early sum is going to give, by place among its outputs."""

    work: Future[list[Summand]]
    place: int

    def result(self) -> Summand:
        """Wait for it."""
        return self.work.result()[self.place]


class EarlySums:
    """The early sums of one rank. All calls are made by the thread that computes.

    Args:
        plan: Whose sums.
        actions_at: What a rank does in its last share, by its place on the pipeline's axis.
        collectives: Of the rank.
        sums: Adds shares in their fixed tree; None adds in the order of the backend.
        holders: For each value of the update the ranks that have it.
        take_up: What microbatches have left of a gradient, as the update takes it.
        observe: Is told of threads that send.
    """

    def __init__(
        self,
        plan: Plan,
        actions_at: Callable[[int], Sequence[Action]],
        collectives: Collectives,
        sums: ShareSums | None,
        holders: Mapping[str, frozenset[int]],
        take_up: Callable[[str, Left], Summand],
        observe: Observer | None = None,
    ) -> None:
        self._plan, self._collectives, self._sums, self._holders = plan, collectives, sums, holders
        self._take_up, self._observe = take_up, observe or Observer()
        self._stages = Stages(plan)
        axis = plan.pipeline.axis
        places = range(1 if axis is None else plan.mesh.size(axis))
        by_place = [early_sums(plan, actions_at(place)) for place in places]
        self._groups = tuple(dict.fromkeys(group for early in by_place for group in self._groups_of(early)))
        self._after = self._planned(by_place[self._stages.place(collectives.rank)])
        self._takes = {name for each in self._all() for name in each.operator.inputs}
        self._lanes: dict[Members, _Sending] = {}
        self._left: dict[str, Left] = {}
        self._started: dict[int, tuple[_Planned, Future[list[Summand]]]] = {}
        self._coming: dict[str, _Coming] = {}
        self.connect()

    def connect(self) -> None:
        """The ranks are connected anew; what was under way is left behind."""
        for sending in self._lanes.values():
            sending.lane.end()
        self._lanes.clear()
        self._forget()
        self._collectives.wires.open_beside(self._groups)

    def begin(self) -> None:
        """A step begins. What one that was not applied has started is waited for: it would write over gradients."""
        for planned, work in self._started.values():
            self._collectives.wires.join(planned.what, planned.members, work)
        self._forget()

    def complete(self, block: int, gradients: Mapping[str, Left]) -> None:
        """The gradients of a block are complete: start the sums that have waited for it.

        Args:
            block: In order of computation.
            gradients: By their names in the update.
        """
        self._left |= {name: left for name, left in gradients.items() if name in self._takes}
        for planned in self._after.get(block, ()):
            self._start(planned)

    def joined(self, operator: Operator) -> list[Summand] | None:
        """What a sum gives, once it is there; None for one that was not started.

        Raises: CollectiveError if it broke.
        """
        if id(operator) not in self._started:
            return None
        planned, work = self._started.pop(id(operator))
        for name in operator.outputs:  # Whoever takes them beside the backward pass has been started.
            del self._coming[name]
        self._collectives.wires.join(planned.what, planned.members, work)
        return work.result()

    def has_taken(self, name: str) -> bool:
        """Whether a gradient is in a sum that has been started."""
        return name in self._takes and name not in self._left

    def _start(self, planned: _Planned) -> None:
        operator, sending = planned.operator, self._sending(planned.members)
        given = [self._given(name) for name in operator.inputs]

        def act() -> list[Summand]:
            summands = [each.result() if isinstance(each, _Coming) else each for each in given]
            given.clear()
            with self._observe.beside():
                return sending.summing.sum(operator, summands)

        work = sending.lane.start(act)
        self._started[id(operator)] = planned, work
        self._coming |= {name: _Coming(work, place) for place, name in enumerate(operator.outputs)}

    def _given(self, name: str) -> Summand | _Coming:
        return self._coming[name] if name in self._coming else self._take_up(name, self._left.pop(name))

    def _sending(self, members: Members) -> "_Sending":
        if members not in self._lanes:
            collectives = replace(self._collectives, wires=self._collectives.wires.beside(members))
            sums = None if self._sums is None else self._sums.on(collectives)
            summing = Summing(self._plan, Gatherings(self._plan, collectives), sums, self._holders)
            name = f"sums-{'-'.join(map(str, members))}"
            self._lanes[members] = _Sending(Lane(name), summing)
        return self._lanes[members]

    def _forget(self) -> None:
        self._left.clear()
        self._started.clear()
        self._coming.clear()

    # What follows from the plan.

    def _groups_of(self, early: Sequence[EarlySum]) -> list[Members]:
        """The groups that run some sums, in their order; the ranks of other stages have other sums."""
        return [
            members
            for one in early
            for group in groups(self._plan.mesh, _axes(one.operator))
            if (members := self._members(one.operator, group))
        ]

    def _members(self, operator: Operator, group: Sequence[int]) -> Members:
        there = taking_part(operator, self._holders, self._stages)
        return tuple(rank for rank in group if rank in there)

    def _planned(self, early: Sequence[EarlySum]) -> Mapping[int, list[_Planned]]:
        gatherings = Gatherings(self._plan, self._collectives)
        scope = Scope(
            site=None, microbatch=0, phase=Phase.UPDATE, values=self._plan.update.values, tensors={}
        )
        found: dict[int, list[_Planned]] = {}
        for one in early:
            there = taking_part(one.operator, self._holders, self._stages)
            gathering = gatherings.of(one.operator, scope, there)
            planned = _Planned(operator=one.operator, members=gathering.members, what=gathering.what)
            found.setdefault(one.after, []).append(planned)
        return found

    def _all(self) -> Iterator[_Planned]:
        for each in self._after.values():
            yield from each


@dataclass(frozen=True, slots=True)
class _Sending:
    """A thread, and the sums that run on it."""

    lane: Lane
    summing: Summing


def _axes(operator: Operator) -> tuple[str, ...]:
    assert operator.transfer is not None, "sums are sent"
    return operator.transfer.axes
