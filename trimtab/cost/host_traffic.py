"""Bytes and seconds between devices and the memory of their hosts: what OFFLOAD costs."""

from collections.abc import Sequence

from trimtab.catalog import Cluster
from trimtab.cost.block_bytes import value_bytes
from trimtab.cost.counts import Counts
from trimtab.plan.explanation import RankGroup
from trimtab.plan.physical import Plan


def waiting_activation_bytes(plan: Plan, stages: Sequence[int]) -> int:
    """Activations of one microbatch that go to the host after the forward pass of some stages, and back before the backward pass."""
    return sum(
        value_bytes(block.values[name], plan.axis_sizes) * plan.num_instances(block, stage)
        for block in plan.blocks
        for name in block.offloaded
        for stage in stages
    )


def host_seconds(
    plan: Plan, counts: Counts, group: RankGroup, cluster: Cluster
) -> tuple[float, float] | None:
    """What one rank of a group waits for in a step: for activations, for states; None if its link is not known.

    There and back once, each alone on the link, at the link's declared rate.
    """
    states = sum(table.host_bytes for table in counts.holdings.of(group.stages))
    activations = waiting_activation_bytes(plan, group.stages) * plan.work.microbatches
    if not states and not activations:
        return 0.0, 0.0
    rate = cluster.nodes[plan.bound.devices[group.ranks[0]].node].accelerator.host_bytes_per_s
    return None if rate is None else (2 * activations / rate, 2 * states / rate)
