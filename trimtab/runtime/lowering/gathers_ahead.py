"""Stored parameters of the next block are gathered while the present one computes: one block ahead, and no further."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from trimtab.plan.gathers_ahead import BlockRun, block_runs, is_gathered_ahead
from trimtab.plan.meshes import groups
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import Action
from trimtab.plan.program import Operator, Phase
from trimtab.runtime.lowering.beside import Beside, Coming, Members, arrived
from trimtab.runtime.lowering.blocks import OperatorRunner
from trimtab.runtime.lowering.collectives import Collectives
from trimtab.runtime.lowering.gatherings import Gatherings
from trimtab.runtime.lowering.scopes import Apply, Scope
from trimtab.runtime.lowering.sites import Site
from trimtab.runtime.lowering.wires import Sent

if TYPE_CHECKING:
    from concurrent.futures import Future


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gather:
    """One gather of one block, as its group's thread does it.

    Args:
        operator: Of the block.
        members: Ranks that take part with this one.
        what: Is sent.
        apply: From pieces to parameters.
    """

    operator: Operator
    members: Members
    what: Sent
    apply: Apply


class GathersAhead:
    """The gathers of one rank. All calls are made by the thread that computes.

    Args:
        plan: Whose blocks.
        actions: All that the rank does in a step, in order.
        sites: The blocks at work.
        collectives: Of the rank.
        beside: Its threads.
        runner: Of operators.
    """

    def __init__(
        self,
        plan: Plan,
        actions: Sequence[Action],
        sites: Sequence[Site],
        collectives: Collectives,
        beside: Beside,
        runner: OperatorRunner,
    ) -> None:
        self._sites, self._beside, self._runner = sites, beside, runner
        self._gatherings, self._plan = Gatherings(plan, collectives), plan
        self._order = block_runs(plan, actions)
        self._bound: dict[tuple[int, Phase], list[_Gather]] = {}
        self._next = 0
        self._started: dict[int, list[Future[list[Tensor]]]] = {}

    def leave(self) -> None:
        """The ranks are connected anew; what was under way is left behind."""
        self._bound.clear()
        self._started.clear()

    def begin(self) -> None:
        """A step begins."""
        self._next = 0
        self._started.clear()

    def take(self, scope: Scope, stored: Mapping[str, Tensor]) -> None:
        """Put the parameters of a block into its scope, and let those of the next one come.

        Args:
            scope: Of the block, which is the next one of the step.
            stored: The rank's pieces, by full name.
        """
        site = scope.site
        assert site is not None, "parameters are of blocks"
        if scope.step is None:
            self._runner.run(site.block.gathers, scope)
            return
        place, own = self._next, BlockRun(site.index, scope.phase)
        assert self._order[place] == own, "blocks run in the order of the plan"
        self._next += 1
        if is_gathered_ahead(site.block):
            # What comes ahead comes in the part of the step that has begun with this block.
            self._runner.begin(scope, site.block.gathers[0])
        for number in (place, place + 1):
            if number < len(self._order) and number not in self._started:
                self._start(number, stored)
        started = self._started.pop(place, None)
        if started is None:
            self._runner.run(site.block.gathers, scope)
            return
        for gather, work in zip(self._gathers(own), started, strict=True):
            self._runner.begin(scope, gather.operator)
            found = self._beside.join(gather.what, gather.members, work)
            scope.tensors.update(zip(gather.operator.outputs, found, strict=True))
            self._runner.tell(scope, gather.operator)

    def _start(self, number: int, stored: Mapping[str, Tensor]) -> None:
        run = self._order[number]
        site = self._sites[run.block]
        if not is_gathered_ahead(site.block):
            return
        scope, coming = self._scope(run), dict[str, Coming]()
        works: list[Future[list[Tensor]]] = []
        for gather in self._gathers(run):
            operator = gather.operator
            given = [
                coming[name] if name in coming else stored[site.full_name(name.removeprefix(_STORED))]
                for name in operator.inputs
            ]
            works.append(self._beside.start(gather.members, partial(_gathered, gather.apply, scope, given)))
            coming |= {name: Coming(works[-1], place) for place, name in enumerate(operator.outputs)}
        self._started[number] = works

    def _gathers(self, run: BlockRun) -> list[_Gather]:
        key = run.block, run.phase
        if key not in self._bound:
            scope = self._scope(run)
            found = []
            for operator in self._sites[run.block].block.gathers:
                gathering = self._gatherings.of(operator, scope, None)
                theirs = Gatherings(self._plan, self._beside.collectives(gathering.members))
                found.append(
                    _Gather(
                        operator=operator,
                        members=gathering.members,
                        what=gathering.what,
                        apply=theirs.bind(operator),
                    )
                )
            self._bound[key] = found
        return self._bound[key]

    def _scope(self, run: BlockRun) -> Scope:
        site = self._sites[run.block]
        return Scope(site=site, microbatch=0, phase=run.phase, values=site.block.values, tensors={})


_STORED = "stored:"


def _gathered(apply: Apply, scope: Scope, given: list[Any]) -> list[Tensor]:
    tensors = arrived(given)
    given.clear()
    return list(apply(scope, tensors, None))


def gather_groups(plan: Plan) -> list[Members]:
    """The groups of all ranks' gathers ahead, in an order that is the same on every rank."""
    found: dict[Members, None] = {}
    for block in plan.blocks:
        if is_gathered_ahead(block):
            for operator in block.gathers:
                for transfer in (operator.transfer, *(each for _, each in operator.variants)):
                    assert transfer is not None, "gathers are sent"
                    found |= dict.fromkeys(groups(plan.mesh, transfer.axes))
    return [members for members in found if len(members) > 1]
