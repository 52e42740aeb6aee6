"""Bytes that ranks have sent against those that a plan says they send."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from trimtab.plan.physical import Plan, Traffic
from trimtab.plan.program import OperatorKind
from trimtab.runtime.lowering.sites import Stages
from trimtab.runtime.lowering.wires import Count, Sent

Counts = Mapping[Sent, Count]
"""What one rank has sent."""


def unplanned(plan: Plan, counts: Sequence[Counts], steps: int) -> Iterator[str]:
    """Every collective whose runs or bytes are not the plan's, in a sentence each.

    Args:
        plan: With its traffic.
        counts: By rank, of all steps.
        steps: That were taken, from the first on.
    """
    for rank, (said, found) in enumerate(zip(planned(plan, steps), counts, strict=True)):
        for what in {**said, **found}:
            told, sent = said.get(what, Count()), found.get(what, Count())
            if told != sent:
                yield (
                    f"rank {rank}: {what}: {sent.sent_bytes} bytes in {sent.runs} runs, and the plan says "
                    f"{told.sent_bytes} bytes in {told.runs} runs"
                )


def planned(plan: Plan, steps: int) -> list[dict[Sent, Count]]:
    """What a plan's traffic says that each rank sends in some steps."""
    stages = Stages(plan)
    found: list[dict[Sent, Count]] = [defaultdict(Count) for _ in range(plan.mesh.num_devices)]
    for traffic in plan.traffic:
        what = sent_of(traffic)
        for rank in {rank for group in traffic.groups for rank in group}:
            runs = _runs(traffic.operator.every, traffic.runs.get(stages.place(rank), 0.0), steps)
            if runs and not (traffic.operator.kind is OperatorKind.SEND and not traffic.sent_bytes(rank)):
                found[rank][what].runs += runs
                found[rank][what].sent_bytes += runs * traffic.sent_bytes(rank)
    return found


def sent_of(traffic: Traffic) -> Sent:
    """What ranks count a collective as."""
    return Sent(
        traffic.block,
        traffic.phase.value,
        traffic.operator.kind.value,
        traffic.tensors,
        traffic.transfer.axes,
        traffic.transfer.route,
    )


def _runs(every: int, runs_a_step: float, steps: int) -> int:
    """How often something happens in the first steps: what happens every few of them, at the last of each few."""
    return round(runs_a_step * every) * (steps // every)
