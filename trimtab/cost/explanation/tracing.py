"""What the program of a plan sent and computed when it was run on tensors without numbers, beside what the plan says.

Loaded by who asks for a trace only: these classes are part of the published schema like those of ``document``.
"""

from dataclasses import dataclass

from trimtab.plan.program import OperatorKind, Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedBlock:
    """A pass of a block that was run once and counts as often as the schedule runs it.

    Args:
        block: ``embedding``, ``layers 0-3``, ``head``.
        phase: forward, or backward with what it computes again.
        layer: That was run; null for embedding and head.
        times: Its layers on the rank times the passes that the schedule makes of them.
    """

    block: str
    phase: Phase
    layer: int | None
    times: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedCollective:
    """All collectives of one kind in a step of one rank.

    Args:
        operation: all_reduce, all_gather, …
        axes: Whose process groups run them.
        route: native, ring, tree, …
        traced_runs: How many were run.
        planned_runs: How many the plan says.
        traced_bytes: That the rank sent.
        planned_bytes: That the plan says it sends.
    """

    operation: OperatorKind
    axes: tuple[str, ...]
    route: str
    traced_runs: int
    planned_runs: int
    traced_bytes: int
    planned_bytes: int

    @property
    def is_planned(self) -> bool:
        """Whether runs and bytes are those of the plan."""
        return (self.traced_runs, self.traced_bytes) == (self.planned_runs, self.planned_bytes)


FLOPS_TOLERANCE = 1e-3
"""Part of the planned FLOPs by which traced ones may differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedFlops:
    """Matrix products of one direction in a step of one rank, attention with all its scores.

    Args:
        phase: forward, or backward with what it computes again.
        traced: Counted as they were called.
        planned: What the plan says.
    """

    phase: Phase
    traced: int
    planned: int

    @property
    def is_planned(self) -> bool:
        """Whether they are the plan's, but for a thousandth."""
        return abs(self.traced - self.planned) <= FLOPS_TOLERANCE * self.planned


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedRank:
    """One rank, run for all that do the same.

    Args:
        rank: That was run.
        ranks: That it stands for, itself among them.
        num_ranks: How many these are.
        stages: That it holds.
        blocks: What was run once and multiplied.
        collectives: By kind, axes and route.
        flops: Forward and backward.
        compression_flops: Of products that are made to send less, which no plan counts.
    """

    rank: int
    ranks: str
    num_ranks: int
    stages: str
    blocks: tuple[TracedBlock, ...]
    collectives: tuple[TracedCollective, ...]
    flops: tuple[TracedFlops, ...]
    compression_flops: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceFacts:
    """A step as the program of the plan runs it.

    Args:
        step: Counted from 1: the first in which everything happens that happens every few steps.
        is_as_planned: Whether nothing differs.
        differences: Every collective and every direction that differs from the plan, in a sentence each.
        ranks: One for all that do the same.
    """

    step: int
    is_as_planned: bool
    differences: tuple[str, ...]
    ranks: tuple[TracedRank, ...]
