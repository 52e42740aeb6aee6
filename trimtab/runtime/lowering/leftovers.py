"""What does compression keep between steps on each rank, and which layout does that belong to?

It is a property of the plan: which sums of a rank lose something, over how many elements, and for PowerSGD the thin
matrix that the next step begins with.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab.plan.meshes import groups
from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator, OperatorKind, Transfer, Value
from trimtab.runtime.lowering.compression import Compressor, Key, factor_shape
from trimtab.runtime.lowering.extents import Layouts
from trimtab.runtime.lowering.sites import UPDATE, Stages, sites_of, taking_part, update_holders

_REDUCTIONS = (OperatorKind.ALL_REDUCE, OperatorKind.AVERAGE, OperatorKind.REDUCE_SCATTER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """What one sum of one rank keeps.

    Args:
        key: By which the rank keeps it.
        numel: Elements of what has been left over.
        factor: Rows and columns of the matrix that PowerSGD goes on with; None without one.
        transfer: How the sum travels.
    """

    key: Key
    numel: int
    factor: tuple[int, int] | None
    transfer: Transfer

    @property
    def name(self) -> str:
        """Where the sum is and its first tensor, which no other sum there has."""
        where, first, *_ = self.key
        return f"{where}: {first}"


class Leftovers:
    """The sums of a plan that leave something over, rank by rank."""

    def __init__(self, plan: Plan, layouts: Layouts) -> None:
        self._plan, self._layouts = plan, layouts
        self._stages, self._holders = Stages(plan), update_holders(plan)
        self.slots = tuple(tuple(self._slots(rank)) for rank in range(plan.mesh.num_devices))

    @property
    def layout(self) -> str:
        """SHA-256 of everything that says whose sums these are; empty where nothing is left over."""
        if not any(self.slots):
            return ""
        plan = self._plan
        said = (plan.mesh.axes, plan.pipeline.stage_of_layer, plan.pipeline.rank_of_stage, plan.work)
        placements = [
            (name, parameter.computed, sorted(parameter.stored.items()))
            for name, parameter in plan.parameters.items()
        ]
        return hashlib.sha256(repr((said, placements, self.slots)).encode()).hexdigest()

    def _slots(self, rank: int) -> Iterator[Slot]:
        found: dict[Key, Slot] = {}
        for where, operator, values, members in self._sums(rank):
            transfer = self._transfer(operator, rank)
            if len(members) > 1 and Compressor.takes(transfer):
                slot = self._slot((where, *operator.inputs), operator, values, members, rank, transfer)
                found[slot.key] = slot
        yield from found.values()

    def _sums(self, rank: int) -> Iterator[tuple[str, Operator, Mapping[str, Value], Sequence[int]]]:
        """Every sum in which a rank takes part: where, which, with the types of its values, and with whom."""
        for site in sites_of(self._plan):
            if self._stages.holds(rank, [site.stage]):
                block = site.block
                for operator in (*block.gathers, *block.forward, *block.recompute, *block.backward):
                    if operator.kind in _REDUCTIONS:
                        yield str(site), operator, block.values, self._group(operator, rank)
        for operator in self._plan.update.operators:
            if operator.kind in _REDUCTIONS:
                there = taking_part(operator, self._holders, self._stages)
                if rank in there:
                    members = [member for member in self._group(operator, rank) if member in there]
                    yield UPDATE, operator, self._plan.update.values, members

    def _slot(
        self,
        key: Key,
        operator: Operator,
        values: Mapping[str, Value],
        members: Sequence[int],
        rank: int,
        transfer: Transfer,
    ) -> Slot:
        numel = self._layouts.numel
        if operator.kind is OperatorKind.REDUCE_SCATTER:
            # Cut into pieces for each member, which may be padded.
            total = sum(numel(values[name], member) for name in operator.outputs for member in members)
        else:
            total = sum(numel(values[name], rank) for name in operator.inputs)
        factor = None
        if transfer.compress == "powersgd":
            value = values[operator.inputs[0]]
            extent = self._layouts.extent(value.dims, value.shape, value.placements, rank)
            factor = factor_shape(extent.shape, transfer)
        return Slot(key=key, numel=total, factor=factor, transfer=transfer)

    def _transfer(self, operator: Operator, rank: int) -> Transfer:
        return operator.transfer_of(self._index(operator, rank))

    def _group(self, operator: Operator, rank: int) -> tuple[int, ...]:
        return self._groups(operator)[self._index(operator, rank)]

    def _index(self, operator: Operator, rank: int) -> int:
        return next(index for index, found in enumerate(self._groups(operator)) if rank in found)

    def _groups(self, operator: Operator) -> tuple[tuple[int, ...], ...]:
        assert operator.transfer is not None, "sums are sent"
        return groups(self._plan.mesh, operator.transfer.axes)
