"""Who takes part in a collective of a plan, how their group does it, and whether it may overwrite what it takes."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from trimtab.plan.meshes import groups
from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator, OperatorKind, Phase, Transfer
from trimtab.runtime.lowering.collectives import Collect, Collectives, Gathering, Members
from trimtab.runtime.lowering.scopes import Apply, Scope
from trimtab.runtime.lowering.wires import Line, Sent

_OWN = frozenset(
    {
        OperatorKind.EMBED,
        OperatorKind.LINEAR,
        OperatorKind.LINEAR_GRAD,
        OperatorKind.SUM,
        OperatorKind.VOCAB_MAX,
        OperatorKind.VOCAB_SUMS,
        OperatorKind.RESCALE,
    }
)
"""Operators whose outputs share no storage with other values and are not saved by their tapes."""

_GRADIENTS = ("acc:", "tied:")
"""Values of the update that are sums over the rank's microbatches."""


class Gatherings:
    """Finds out how collectives run on one rank.

    Args:
        plan: Whose they are.
        collectives: Of the rank.
    """

    def __init__(self, plan: Plan, collectives: Collectives) -> None:
        self._plan, self._collectives = plan, collectives
        axes = {transfer.axes for transfer in transfers_of(plan)}
        self._groups = {each: groups(plan.mesh, each) for each in axes}

    def bind(self, operator: Operator) -> Apply:
        """How a collective runs at one site; what does not change from run to run is looked up in the first one."""
        # The same operator gathers in two phases, and some sums are of some ranks only.
        known: dict[tuple[Phase, frozenset[int] | None], Collect] = {}

        def apply(
            scope: Scope, tensors: list[Tensor], taking_part: frozenset[int] | None
        ) -> Sequence[Tensor]:
            key = scope.phase, taking_part
            if key not in known:
                known[key] = self._collectives.bind(self.of(operator, scope, taking_part))
            return known[key](tensors)

        return apply

    def of(self, operator: Operator, scope: Scope, taking_part: frozenset[int] | None) -> Gathering:
        """A collective with who takes part in it.

        Args:
            operator: That is done.
            scope: In which.
            taking_part: Ranks that do if they are in the group; all by default.
        """
        transfer, members = self._group(operator, taking_part)
        what = Sent(
            scope.block,
            scope.phase.value,
            operator.kind.value,
            operator.inputs,
            transfer.axes,
            transfer.route,
        )
        return Gathering(
            operator=operator,
            transfer=transfer,
            members=members,
            values=scope.values,
            what=what,
            where=scope.where,
            is_last_use=self._is_last_use(operator, scope),
        )

    def _is_last_use(self, operator: Operator, scope: Scope) -> bool:
        """Whether nobody needs the inputs of a collective but it, so that it may overwrite them."""
        if scope.site is None:
            users: Sequence[Operator] = self._plan.update.operators
            is_own = all(name.startswith(_GRADIENTS) for name in operator.inputs)
        else:
            block = scope.site.block
            users = (*block.gathers, *block.forward, *block.recompute, *block.backward)
            makers = {name: found.kind for found in users for name in found.outputs}
            kept = {*block.kept, block.result, block.gradient}
            is_own = all(makers.get(name) in _OWN and name not in kept for name in operator.inputs)
        others = {name for found in users if found != operator for name in found.inputs}
        return is_own and others.isdisjoint(operator.inputs)

    def line(self, gathering: Gathering) -> Line:
        """The wires between the members of a collective."""
        return self._collectives.wires.line(gathering.what, gathering.members)

    def _group(self, operator: Operator, taking_part: frozenset[int] | None) -> tuple[Transfer, Members]:
        """How this rank's group does a collective, and who is in it."""
        assert operator.transfer is not None, "collectives are sent"
        rank = self._collectives.rank
        all_groups = self._groups[operator.transfer.axes]
        index = next(place for place, found in enumerate(all_groups) if rank in found)
        members = tuple(
            member for member in all_groups[index] if taking_part is None or member in taking_part
        )
        return operator.transfer_of(index), members


def transfers_of(plan: Plan) -> Iterable[Transfer]:
    """How each collective of a plan travels, in order, those that only some groups use among them."""
    programs = [(*block.gathers, *block.forward, *block.recompute, *block.backward) for block in plan.blocks]
    for operators in (*programs, plan.update.operators):
        for operator in operators:
            if operator.transfer is not None:
                yield operator.transfer
                yield from (transfer for _, transfer in operator.variants)
