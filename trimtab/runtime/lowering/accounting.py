"""Bytes that ranks have sent against those that a plan says they send."""

from collections import Counter, defaultdict
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
        yield from differences(rank, said, found)


def differences(rank: int, said: Counts, found: Counts) -> Iterator[str]:
    """Every collective of a rank whose runs or bytes are not those that were said, in a sentence each."""
    for what in {**said, **found}:
        told, sent = said.get(what, Count()), found.get(what, Count())
        if told != sent:
            yield (
                f"rank {rank}: {what}: {sent.sent_bytes} bytes in {sent.runs} runs, and the plan says "
                f"{told.sent_bytes} bytes in {told.runs} runs"
            )


def planned(
    plan: Plan, steps: int, *, first: int = 0, ranks: Sequence[int] | None = None
) -> list[dict[Sent, Count]]:
    """What a plan's traffic says that ranks send in some steps.

    Args:
        plan: With its traffic.
        steps: How many.
        first: The first of them, counted from 0.
        ranks: Whose traffic; all by default.
    """
    stages = Stages(plan)
    wanted = range(plan.mesh.num_devices) if ranks is None else ranks
    found: dict[int, dict[Sent, Count]] = {rank: defaultdict(Count) for rank in wanted}
    for traffic in plan.traffic:
        what = sent_of(traffic)
        for rank, sent_bytes in sent_by_rank(traffic).items():
            if rank not in found:
                continue
            runs = _runs(traffic.operator.every, traffic.runs.get(stages.place(rank), 0.0), first, steps)
            if runs and not (traffic.operator.kind is OperatorKind.SEND and not sent_bytes):
                found[rank][what].runs += runs
                found[rank][what].sent_bytes += runs * sent_bytes
    return [found[rank] for rank in wanted]


def sent_by_rank(traffic: Traffic) -> Mapping[int, int]:
    """For each rank that takes part in a collective, the bytes that it sends in one run."""
    found: dict[int, int] = {}
    for indices, sends in traffic.sends:
        by_place: Counter[int] = Counter()
        for send in sends:
            by_place[send.source] += send.elements
        for index in indices:
            found |= {rank: by_place[place] for place, rank in enumerate(traffic.groups[index])}
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


def _runs(every: int, runs_a_step: float, first: int, steps: int) -> int:
    """How often something happens in some steps: what happens every few of them, at the last of each few."""
    return round(runs_a_step * every) * ((first + steps) // every - first // every)
