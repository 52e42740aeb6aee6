"""Sums of gradients over ranks, whole or by the shares that they come from."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator, Phase
from trimtab.runtime.lowering.gatherings import Gatherings
from trimtab.runtime.lowering.scopes import Apply, Scope
from trimtab.runtime.lowering.share_sums import Apart, ShareSums
from trimtab.runtime.lowering.sites import Stages, taking_part

Summand = Tensor | Apart
"""A gradient, or what its shares add to it."""


class Summing:
    """Runs sums of one plan's update, on the wires of one thread.

    Args:
        plan: Whose update.
        gatherings: Of the thread's collectives.
        sums: Adds shares in their fixed tree, by the same collectives; None adds in the order of the backend.
        holders: For each value of the update the ranks that have it.
    """

    def __init__(
        self,
        plan: Plan,
        gatherings: Gatherings,
        sums: ShareSums | None,
        holders: Mapping[str, frozenset[int]],
    ) -> None:
        self._values, self._stages = plan.update.values, Stages(plan)
        self._gatherings, self._sums, self._holders = gatherings, sums, holders
        self._bound: dict[int, tuple[Operator, Apply]] = {}

    def members(self, operator: Operator) -> frozenset[int]:
        """The ranks that run an operator of the update."""
        return taking_part(operator, self._holders, self._stages)

    def sum(self, operator: Operator, summands: Sequence[Summand]) -> list[Summand]:
        """What a sum gives for its inputs: all of them whole, or all of them apart, with shares that have met alike."""
        apart = [summand for summand in summands if isinstance(summand, Apart)]
        whole = [summand for summand in summands if isinstance(summand, Tensor)]
        assert not (apart and whole), "gradients that travel together have met the same shares"
        return list(self._apart(operator, apart) if apart else self._whole(operator, whole))

    def _whole(self, operator: Operator, tensors: list[Tensor]) -> Sequence[Tensor]:
        if id(operator) not in self._bound:
            self._bound[id(operator)] = operator, self._gatherings.bind(operator)
        _, apply = self._bound[id(operator)]
        return apply(self._scope(), tensors, self.members(operator))

    def _apart(self, operator: Operator, summands: Sequence[Apart]) -> list[Summand]:
        """A sum over ranks that have different shares brings them together."""
        assert self._sums is not None, "shares are told apart"
        assert operator.transfer is not None, "sums are sent"
        (met,) = {summand.met for summand in summands}
        gathering = self._gatherings.of(operator, self._scope(), self.members(operator))
        found = self._sums.add(gathering, [summand.by_key for summand in summands], met)
        met |= {*operator.transfer.axes}
        return [self._sums.folded(Apart(by_key=by_key, met=met)) for by_key in found]

    def _scope(self) -> Scope:
        return Scope(site=None, microbatch=0, phase=Phase.UPDATE, values=self._values, tensors={})
