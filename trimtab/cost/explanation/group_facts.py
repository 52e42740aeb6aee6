"""What the ranks of a group hold, compute, send and wait for, as the document tells it."""

from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from trimtab.catalog import Cluster
from trimtab.cost.communication import collective_time
from trimtab.cost.counts import Counts
from trimtab.cost.estimates import Estimate, GroupTime
from trimtab.cost.explanation.document import (
    AxisSize,
    CollectiveFacts,
    GroupFacts,
    HeldFacts,
    MemoryFacts,
    MomentFacts,
    StageFacts,
)
from trimtab.cost.explanation.places import at
from trimtab.cost.flops import StageFlops
from trimtab.cost.memory import RankMemory
from trimtab.cost.stage_times import runs_beside
from trimtab.plan.explanation import CollectiveUse, LevelBytes, ranges
from trimtab.plan.physical import Plan
from trimtab.plan.program import OperatorKind, Transfer


def group_facts(
    plan: Plan,
    cluster: Cluster,
    counts: Counts,
    memories: Sequence[MemoryFacts],
    found: Estimate,
    stages: Sequence[StageFacts],
) -> Iterator[GroupFacts]:
    """Every rank group of a plan.

    Args:
        plan: Whose groups.
        cluster: That they stand on.
        counts: Of the plan.
        memories: By group.
        found: Where the step of each group goes.
        stages: All of them.
    """
    times: Sequence[GroupTime | None] = found.groups or [None] * len(counts.groups)
    titles = list(_titles(plan, counts))
    for number, (group, uses) in enumerate(zip(counts.groups, counts.uses, strict=True)):
        work = sum((counts.flops_of_stage(stage) for stage in group.stages), StageFlops())
        work = work.times(plan.work.microbatches)
        collectives = tuple(_collective(plan, use, cluster) for use in uses)
        devices = [plan.bound.devices[rank] for rank in group.ranks]
        yield GroupFacts(
            name=letters(number),
            title=titles[number],
            ranks=ranges(group.ranks),
            num_ranks=len(group.ranks),
            nodes=ranges({device.node for device in devices}),
            accelerator=devices[0].kind,
            place=group.place,
            stages=tuple(stages[stage] for stage in group.stages),
            memory=memories[number],
            step_flops=work.useful,
            recomputed_flops=work.recompute,
            collectives=collectives,
            rank_bytes=sum((facts.rank_bytes for facts in collectives), LevelBytes()),
            group_bytes=sum((facts.group_bytes for facts in collectives), LevelBytes()),
            time=times[number],
        )


def letters(number: int) -> str:
    """A, B, … Z, AA, AB, …"""
    high, low = divmod(number, len(ascii_uppercase))
    return (letters(high - 1) if high else "") + ascii_uppercase[low]


def _titles(plan: Plan, counts: Counts) -> Iterator[str]:
    """What tells each group from the others: the place in the pipeline, the device, the routes."""
    kinds = {plan.bound.devices[group.ranks[0]].kind for group in counts.groups}
    for group, uses in zip(counts.groups, counts.uses, strict=True):
        parts = [f"{plan.pipeline.axis} {group.place}"] if plan.pipeline.axis else []
        if len(kinds) > 1:
            parts.append(plan.bound.devices[group.ranks[0]].kind)
        chosen = [use.traffic.transfer for use in uses if use.traffic.operator.variants]
        parts += dict.fromkeys(_way(transfer) for transfer in chosen)
        yield ", ".join(parts) or "all ranks"


def _way(transfer: Transfer) -> str:
    """How a collective travels: ``ring``, ``hierarchical(node), topk(0.01), bf16``."""
    levels = f"({', '.join(transfer.levels)})" if transfer.levels else ""
    return ", ".join(
        (f"{transfer.route}{levels}", *([_compress(transfer)] if transfer.compress != "none" else []))
    )


def _compress(transfer: Transfer) -> str:
    argument = "" if transfer.compress_argument is None else f"({transfer.compress_argument:g})"
    return f"{transfer.compress}{argument}"


def memory_facts(found: RankMemory, *, values_bytes: int, device_bytes: int | None) -> MemoryFacts:
    """The memory of a rank, and whether its device has it; None if the device's is not known."""
    return MemoryFacts(
        held=tuple(
            HeldFacts(table=held.table, device_bytes=held.device_bytes, host_bytes=held.host_bytes)
            for held in found.held
        ),
        moments=tuple(
            MomentFacts(moment=moment, classes=classes, total_bytes=classes.total)
            for moment, classes in found.moments.items()
        ),
        peak=found.peak,
        peak_bytes=found.peak_bytes,
        values_bytes=values_bytes,
        host_bytes=found.host_bytes,
        device_bytes=device_bytes,
        fits=None if device_bytes is None else found.peak_bytes <= device_bytes,
    )


def _collective(plan: Plan, use: CollectiveUse, cluster: Cluster) -> CollectiveFacts:
    traffic, transfer = use.traffic, use.traffic.transfer
    time = collective_time(use, cluster)
    because = traffic.operator.because
    return CollectiveFacts(
        block=traffic.block,
        phase=traffic.phase,
        operation=traffic.operator.kind,
        axes=tuple(AxisSize(axis=axis, size=plan.mesh.size(axis)) for axis in transfer.axes),
        group_size=len(traffic.groups[0]),
        num_groups=use.num_groups,
        route=transfer.route,
        levels=transfer.levels,
        wire=transfer.wire,
        compress=_compress(transfer),
        is_sealed=transfer.is_sealed,
        bucket_bytes=transfer.bucket_bytes,
        runs_per_step=use.runs,
        payload_bytes=traffic.payload_bytes,
        rank_bytes=use.most.times(use.runs),
        group_bytes=use.total.times(use.runs),
        seconds=time.seconds,
        slowest=time.level,
        is_hidden=traffic.operator.kind is not OperatorKind.SEND and runs_beside(use),
        tensors=_tensors(traffic.tensors),
        num_tensors=len(traffic.tensors),
        reason=because.reason,
        decided_by=at(because.line),
    )


_SHOWN = 4
"""Names of tensors that are listed before the rest is counted."""

_GRADIENTS = ("acc:", "tied:", "own:", "both:", "grad:", "sum:")
"""What names of gradients begin with."""

_MARKS = "@~#/"
"""What tells copies of a value apart, which only the plan needs."""


def _tensors(names: Sequence[str]) -> str:
    """The first names and how many follow.

    >>> _tensors(["acc:embedding.weight", "acc:final_norm.weight"]), _tensors(["in@1"])
    ('gradients of embedding.weight, final_norm.weight', 'in')
    """
    shown = ", ".join(dict.fromkeys(_plain(name) for name in names[:_SHOWN]))
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    what = ""
    if names[0].startswith(_GRADIENTS):
        what = "gradient of " if len(names) == 1 else "gradients of "
    return f"{what}{shown}{rest}"


def _plain(name: str) -> str:
    for mark in _MARKS:
        name = name.partition(mark)[0]
    return name.rpartition(":")[2]
