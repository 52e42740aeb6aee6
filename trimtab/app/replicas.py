"""What the runtime of this release does with a job that splits the batch only: its shares, memory and traffic."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from trimtab.app.machines import MachineFacts
from trimtab.catalog import THIS_MACHINE, cluster
from trimtab.cost.explanation.document import OwnershipFacts, ReplicaFacts, ReplicatedFacts
from trimtab.cost.replicated import (
    ALL_REDUCE_FORMULA,
    GATHER_FORMULA,
    REDUCE_FORMULA,
    RankMemory,
    RankTraffic,
    figures_of,
    largest_allocated,
    shares_by_rank,
)
from trimtab.plan.explanation import ranges
from trimtab.plan.layout import ReplicatedLayout, network_of, plan_layout
from trimtab.plan.shares import assign_shares
from trimtab.plan.training import num_states
from trimtab.spec import Job, LoadedJob
from trimtab.terms import InfeasibleError, format_bytes


def refuse_what_cannot_fit(loaded: LoadedJob, machine: MachineFacts) -> None:
    """Refuse a job whose ranks need more memory than there is, before anything is started.

    Activations are left out: what a backward pass keeps depends on the kernels, and a run that might fit is not
    refused.

    Raises: InfeasibleError with what is needed and what there is.
    """
    job = loaded.job
    network = network_of(job)
    if network is None:
        return
    needed = [memory.total_bytes for memory, _, _ in _figures(job, plan_layout(job, network))]
    if job.orchestration.cluster not in (None, THIS_MACHINE):
        accelerator = cluster(job.orchestration.cluster).nodes[0].accelerator
        where = f"one {accelerator.name} of {job.orchestration.cluster}"
        _refuse(where, max(needed), accelerator.memory_bytes)
    elif not machine.has_accelerator:
        _refuse("all ranks on this machine", sum(needed), machine.memory_bytes)


def replicated_facts(job: Job, layout: ReplicatedLayout) -> ReplicatedFacts:
    """Who computes which shares, and what ranks allocate and send; neighbours with equal figures as one."""
    formulas = {"all_reduce": ALL_REDUCE_FORMULA}
    if layout.has_fixed_order:
        formulas = {"reduce": REDUCE_FORMULA, "gather": GATHER_FORMULA}
    found: list[ReplicaFacts] = []
    shares = shares_by_rank(layout, layout.devices)
    for figures, members in groupby(enumerate(_figures(job, layout)), key=itemgetter(1)):
        ranks = [rank for rank, _ in members]
        memory, traffic, num_shares = figures
        found.append(
            ReplicaFacts(
                ranks=ranges(ranks),
                shares=ranges(share for rank in ranks for share in shares[rank]),
                num_shares=num_shares,
                memory_bytes=_by_class(memory),
                reduce_bytes=traffic.reduce_bytes,
                gather_bytes=traffic.gather_bytes,
            )
        )
    return ReplicatedFacts(ownership=tuple(_ownership(layout)), ranks=tuple(found), formulas=formulas)


def largest_memory(job: Job, layout: ReplicatedLayout) -> RankMemory:
    """What the rank that needs most allocates."""
    return largest_allocated(layout, states=num_states(job.train.optimizer), saves=saves(job))


def saves(job: Job) -> bool:
    """Whether a run writes checkpoints."""
    return job.fault_tolerance.checkpoint.every != "off"


def _figures(job: Job, layout: ReplicatedLayout) -> Iterator[tuple[RankMemory, RankTraffic, int]]:
    """Memory, traffic and number of shares of each rank of the whole run."""
    found = figures_of(layout, states=num_states(job.train.optimizer), saves=saves(job))
    yield from ((memory, traffic, len(own)) for memory, traffic, own in found)


def _ownership(layout: ReplicatedLayout) -> Iterator[OwnershipFacts]:
    """With all ranks, with fewer, and alone."""
    if not layout.has_fixed_order:
        return
    devices = layout.devices
    for ranks in sorted({devices, devices - 1, -(-devices // 2), 1} - {0}, reverse=True):
        yield OwnershipFacts(ranks=ranks, owners=tuple(assign_shares(layout.num_parts, range(ranks))))


def _by_class(memory: RankMemory) -> dict[str, int]:
    return {
        "parameters": memory.parameters_bytes,
        "gradients": memory.gradients_bytes,
        "optimizer": memory.optimizer_bytes,
        "exchange": memory.exchange_bytes,
        "staging": memory.staging_bytes,
    }


def _refuse(where: str, needed_bytes: int, available_bytes: int) -> None:
    if needed_bytes > available_bytes:
        raise InfeasibleError(
            f"does not fit: {where} would need {format_bytes(needed_bytes)} without activations, and there are "
            f"{format_bytes(available_bytes)}; use a smaller model, fewer devices or fewer shares"
        )
