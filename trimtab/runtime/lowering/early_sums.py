"""Sums of gradients that run while the backward pass goes on.

Which sums run on the threads of ``Beside``, and in which order, follows from the plan. The thread that computes waits for none
before it has started them all; what a sum takes from another one was started before it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from trimtab.plan.early_sums import EarlySum, early_sums
from trimtab.plan.meshes import groups
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import Action
from trimtab.plan.program import Operator, Phase
from trimtab.runtime.lowering.beside import Beside, Coming, Members, arrived
from trimtab.runtime.lowering.collectives import Collectives
from trimtab.runtime.lowering.gatherings import Gatherings
from trimtab.runtime.lowering.scopes import Scope
from trimtab.runtime.lowering.share_sums import Leaves, ShareSums
from trimtab.runtime.lowering.sites import Stages, taking_part
from trimtab.runtime.lowering.summing import Summand, Summing
from trimtab.runtime.lowering.wires import Sent

if TYPE_CHECKING:
    from concurrent.futures import Future

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


class EarlySums:
    """The early sums of one rank. All calls are made by the thread that computes.

    Args:
        plan: Whose sums.
        actions_at: What a rank does in its last share, by its place on the pipeline's axis.
        collectives: Of the rank.
        beside: Its threads.
        sums: Adds shares in their fixed tree; None adds in the order of the backend.
        holders: For each value of the update the ranks that have it.
        take_up: What microbatches have left of a gradient, as the update takes it.
    """

    def __init__(
        self,
        plan: Plan,
        actions_at: Callable[[int], Sequence[Action]],
        collectives: Collectives,
        beside: Beside,
        sums: ShareSums | None,
        holders: Mapping[str, frozenset[int]],
        take_up: Callable[[str, Left], Summand],
    ) -> None:
        self._plan, self._beside, self._sums, self._holders = plan, beside, sums, holders
        self._take_up = take_up
        self._stages = Stages(plan)
        own = early_sums(plan, actions_at(self._stages.place(collectives.rank)))
        self._after = self._planned(own, Gatherings(plan, collectives))
        self._takes = {name for each in self._all() for name in each.operator.inputs}
        self._summing: dict[Members, Summing] = {}
        self._left: dict[str, Left] = {}
        self._started: dict[int, tuple[_Planned, Future[list[Summand]]]] = {}
        self._coming: dict[str, Coming] = {}

    def leave(self) -> None:
        """The ranks are connected anew; what was under way is left behind."""
        self._summing.clear()
        self._forget()

    def begin(self) -> None:
        """A step begins. What one that was not applied has started is waited for: it would write over gradients."""
        for planned, work in self._started.values():
            self._beside.join(planned.what, planned.members, work)
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
        return self._beside.join(planned.what, planned.members, work)

    def has_taken(self, name: str) -> bool:
        """Whether a gradient is in a sum that has been started."""
        return name in self._takes and name not in self._left

    def _start(self, planned: _Planned) -> None:
        operator, summing = planned.operator, self._summing_of(planned.members)
        given = [self._given(name) for name in operator.inputs]

        def act() -> list[Summand]:
            summands = arrived(given)
            given.clear()
            return summing.sum(operator, summands)

        work = self._beside.start(planned.members, act)
        self._started[id(operator)] = planned, work
        self._coming |= {name: Coming(work, place) for place, name in enumerate(operator.outputs)}

    def _given(self, name: str) -> Summand | Coming:
        return self._coming[name] if name in self._coming else self._take_up(name, self._left.pop(name))

    def _summing_of(self, members: Members) -> Summing:
        if members not in self._summing:
            collectives = self._beside.collectives(members)
            sums = None if self._sums is None else self._sums.on(collectives)
            gatherings = Gatherings(self._plan, collectives)
            self._summing[members] = Summing(self._plan, gatherings, sums, self._holders)
        return self._summing[members]

    def _forget(self) -> None:
        self._left.clear()
        self._started.clear()
        self._coming.clear()

    # What follows from the plan.

    def _planned(self, early: Sequence[EarlySum], gatherings: Gatherings) -> Mapping[int, list[_Planned]]:
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


def groups_of(
    plan: Plan, actions_at: Callable[[int], Sequence[Action]], holders: Mapping[str, frozenset[int]]
) -> list[Members]:
    """The groups of all ranks' early sums, in an order that is the same on every rank."""
    stages, axis = Stages(plan), plan.pipeline.axis
    found: dict[Members, None] = {}
    for place in range(1 if axis is None else plan.mesh.size(axis)):
        for one in early_sums(plan, actions_at(place)):
            assert one.operator.transfer is not None, "sums are sent"
            there = taking_part(one.operator, holders, stages)
            for group in groups(plan.mesh, one.operator.transfer.axes):
                members = tuple(rank for rank in group if rank in there)
                if members:
                    found[members] = None
    return list(found)
