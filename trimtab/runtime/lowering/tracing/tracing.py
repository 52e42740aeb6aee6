"""Runs the program that ranks of a plan would run, one rank after another, on tensors without numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trimtab.plan.physical import Plan
from trimtab.plan.program import Phase
from trimtab.runtime.lowering.tracing.meters import Meter
from trimtab.runtime.lowering.tracing.rank_classes import RankClass
from trimtab.runtime.lowering.tracing.silent_transport import SilentTransport
from trimtab.runtime.lowering.tracing.traced_rank import Repeated, TracedRank, empty_microbatches
from trimtab.runtime.lowering.updating import Rules
from trimtab.runtime.lowering.wires import Count, Sent, Wires
from trimtab.runtime.optimizers import OPTIMIZERS
from trimtab.spec import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTrace:
    """What one rank sends and computes in a step.

    Args:
        rank: That was run.
        stands_for: The ranks that do the same, itself among them.
        counts: Runs and bytes of its collectives.
        flops: Of its matrix products, by phase; attention computes all scores.
        sending_flops: Of the products that compression makes, which no plan counts.
        repeated: What was run once and how often it counts.
    """

    rank: int
    stands_for: tuple[int, ...]
    counts: Mapping[Sent, Count]
    flops: Mapping[Phase, int]
    sending_flops: int
    repeated: tuple[Repeated, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One step of a plan.

    Args:
        step: Counted from 0: the first in which everything happens that happens every few steps.
        ranks: One of each class.
    """

    step: int
    ranks: tuple[RankTrace, ...]


def rules_of(job: Job) -> Rules:
    """The rules of a job, at its peak learning rate."""
    chosen = job.train.optimizer
    optimizer = OPTIMIZERS[chosen.name](**chosen.chosen.model_dump())
    clip = None if job.train.clip == "off" else float(job.train.clip)
    return Rules(optimizer=optimizer, learning_rate=lambda _: optimizer.lr, clip=clip)


def trace(plan: Plan, rules: Rules, classes: Sequence[RankClass]) -> Trace:
    """What every rank of a plan sends and computes in a step, from running one of each class.

    Nothing is allocated, nobody else is there. One device suffices for any number of ranks.

    Args:
        plan: Of any world size.
        rules: Of the run; whatever its numbers are, an update takes place.
        classes: All of its ranks, by ``rank_classes``.
    """
    return Trace(step=full_step(plan), ranks=tuple(trace_rank(plan, rules, one) for one in classes))


def full_step(plan: Plan) -> int:
    """The first step in which everything happens that happens every few steps, counted from 0."""
    return math.lcm(*(operator.every for operator in plan.update.operators)) - 1


def trace_rank(plan: Plan, rules: Rules, ranks: RankClass, *, is_whole: bool = False) -> RankTrace:
    """Run the first of some ranks that do the same.

    Args:
        plan: Of any world size.
        rules: Of the run.
        ranks: That it stands for.
        is_whole: Whether every layer and microbatch is run, instead of one of each block.
    """
    rank = ranks.ranks[0]
    wires = Wires(rank, plan.mesh.num_devices, is_connected=False)
    wires.transport = SilentTransport()
    # The kernels of attention are not made of products that could be counted; the math path is.
    with torch.device("meta"), sdpa_kernel([SDPBackend.MATH]), FlopCounterMode(display=False) as counter:
        traced = TracedRank(plan, rank, wires, rules, Meter(wires, counter), is_whole=is_whole)
        traced.step(empty_microbatches(plan), full_step(plan))
        metered = traced.metered()
    return RankTrace(
        rank=rank,
        stands_for=ranks.ranks,
        counts=metered.counts,
        flops=metered.flops,
        sending_flops=metered.sending_flops,
        repeated=traced.repeated,
    )
