"""Memory of a rank by class over the step, from what a plan says that it holds.

Counted are the bytes that the plan's own values take, whoever runs them; what a kernel needs besides is not, except that a
loss works in fp32. The two largest blocks that a rank gathers are there at once, logits once more in fp32, and a microbatch to
and from each neighbouring stage. What this runtime needs is told by ``trimtab.cost.run_memory``.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from trimtab.cost.block_bytes import block_bytes
from trimtab.cost.counts import Counts
from trimtab.cost.holdings import HeldTable
from trimtab.plan.explanation import CollectiveUse
from trimtab.plan.physical import Plan, Traffic
from trimtab.plan.pipelines import peak_bytes
from trimtab.plan.program import OperatorKind, Phase
from trimtab.terms import OnLoss


class Moment(StrEnum):
    """A part of the step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryClasses:
    """Bytes on the device by class.

    Args:
        parameters: As they are stored between uses.
        gradients: Added up over microbatches, as they are stored.
        states: Of the optimizer, a master copy included.
        gathered: Stored parameters put together for use, and copies of others in the type of use.
        activations: Kept from the forward pass for the backward pass.
        working: What lives for a moment: inside a block, recomputed, gradients of activations, logits.
        buffers: What collectives send from and receive into besides.
    """

    parameters: int = 0
    gradients: int = 0
    states: int = 0
    gathered: int = 0
    activations: int = 0
    working: int = 0
    buffers: int = 0

    @property
    def total(self) -> int:
        """All classes together."""
        return (
            self.parameters
            + self.gradients
            + self.states
            + self.gathered
            + self.activations
            + self.working
            + self.buffers
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Memory of one rank.

    Args:
        moments: What it needs at most in each part of the step.
        held: What stays between steps, by table.
        host_bytes: In host memory: what is offloaded, kept activations among it.
    """

    moments: Mapping[Moment, MemoryClasses]
    held: tuple[HeldTable, ...]
    host_bytes: int

    @property
    def peak(self) -> Moment:
        """The part of the step that needs most; of equals the first."""
        return max(self.moments, key=lambda moment: self.moments[moment].total)

    @property
    def peak_bytes(self) -> int:
        """What the device must have."""
        return self.moments[self.peak].total


def num_leaves(plan: Plan, rule: OnLoss) -> int:
    """Gradients that a rank keeps at once.

    Where survivors go on with the gradients that they have, one for each share. Otherwise the tree is added up as far
    as it is complete, and as many stay open as the number of shares has binary digits. Without shares, one.
    """
    if not plan.work.has_fixed_order:
        return 1
    parts = plan.work.parts_per_replica
    return parts if rule is OnLoss.EXACT else parts.bit_length()


class MemoryCounter:
    """Counts the memory of the ranks of a plan; what a block needs is worked out once.

    Args:
        plan: Whose ranks.
        counts: Of the plan.
        num_leaves: Gradients that a rank keeps at once.
    """

    def __init__(self, plan: Plan, counts: Counts, *, num_leaves: int) -> None:
        self._plan = plan
        self._counts = counts
        self._num_leaves = num_leaves
        self._blocks = {
            block.name: block_bytes(plan, block, counts.holdings.parameters[block.name])
            for block in plan.blocks
        }
        self._kept = self._most_in_flight([found.kept for found in self._blocks.values()])
        self._kept_on_host = self._most_in_flight([found.kept_on_host for found in self._blocks.values()])

    def of(self, number: int) -> RankMemory:
        """The memory of a rank of a group, by its number."""
        group, uses = self._counts.groups[number], self._counts.uses[number]
        held = self._counts.holdings.of(group.stages)
        params, grads, states = (table.device_bytes for table in held)
        base = MemoryClasses(parameters=params, gradients=grads * self._num_leaves, states=states)
        instances = self._instances(group.stages)
        blocks = [self._blocks[name] for name in instances]
        computing = replace(base, gathered=self._gathered(instances), activations=self._kept[group.place])
        forward, backward, update = self._buffers(uses)
        return RankMemory(
            moments={
                Moment.FORWARD: replace(
                    computing,
                    working=max((block.forward_peak for block in blocks), default=0),
                    buffers=forward,
                ),
                Moment.BACKWARD: replace(
                    computing,
                    working=max((block.backward_peak for block in blocks), default=0),
                    buffers=backward,
                ),
                Moment.UPDATE: replace(
                    base, working=self._counts.holdings.update_bytes(group.stages), buffers=update
                ),
            },
            held=held,
            host_bytes=sum(table.host_bytes for table in held) + self._kept_on_host[group.place],
        )

    def _instances(self, stages: Sequence[int]) -> dict[str, int]:
        """How many instances of each block some stages run."""
        found = {
            block.name: sum(self._plan.num_instances(block, stage) for stage in stages)
            for block in self._plan.blocks
        }
        return {name: count for name, count in found.items() if count}

    def _gathered(self, instances: Mapping[str, int]) -> int:
        sizes = (
            self._blocks[name].gathered for name, count in instances.items() for _ in range(min(count, 2))
        )
        copies = sum(self._blocks[name].copies * count for name, count in instances.items())
        return sum(heapq.nlargest(2, sizes)) + copies

    def _most_in_flight(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """For each place the most bytes held at once, if a microbatch holds so many of each block."""
        plan, actions = self._plan, self._counts.actions
        by_stage = tuple(
            sum(
                size * plan.num_instances(block, stage)
                for block, size in zip(plan.blocks, sizes, strict=True)
                if size
            )
            for stage in range(plan.pipeline.num_stages)
        )
        return by_stage if actions is None or not any(by_stage) else peak_bytes(actions, stage_bytes=by_stage)

    def _buffers(self, uses: Sequence[CollectiveUse]) -> tuple[int, int, int]:
        """What is sent in another type than it is kept in, and what passes between stages: in each moment."""
        most = dict.fromkeys(Phase, 0)
        passing = 0
        for traffic in (use.traffic for use in uses):
            if traffic.operator.kind is OperatorKind.SEND:
                passing += traffic.payload_bytes
            elif self._is_converted(traffic):
                most[traffic.phase] = max(most[traffic.phase], traffic.payload_bytes)
        # Of activations and of their gradients one leaves while another arrives.
        return (
            most[Phase.FORWARD] + passing,
            max(most[Phase.RECOMPUTE], most[Phase.BACKWARD]) + passing,
            most[Phase.UPDATE],
        )

    def _is_converted(self, traffic: Traffic) -> bool:
        if traffic.transfer.compress != "none":
            return True
        values = self._plan.update.values
        if traffic.phase is not Phase.UPDATE:
            values = next(block.values for block in self._plan.blocks if block.name == traffic.block)
        return values[traffic.tensors[0]].dtype != traffic.transfer.wire
