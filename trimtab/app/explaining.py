"""The verb ``explain``: what a job would do, per rank, and which line decided each part of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trimtab.app.job_reading import network_key, read_job, refuse_what_cannot_run, say_warnings
from trimtab.app.machines import MachineFacts, find_machine
from trimtab.app.output import print_document
from trimtab.catalog import THIS_MACHINE, Network, cluster
from trimtab.cost.replicated import (
    ALL_REDUCE_FORMULA,
    GATHER_FORMULA,
    REDUCE_FORMULA,
    RankMemory,
    num_states,
    rank_memory,
    rank_traffic,
)
from trimtab.plan.layout import ReplicatedLayout, deciding_lines, network_of, plan_layout
from trimtab.policy import assign_shares, own_blocks, shares_of
from trimtab.spec import Job, LoadedJob
from trimtab.terms import ExitCode, InfeasibleError, OnLoss, format_bytes

_GUARANTEES = {
    OnLoss.EXACT: "survivors keep the share gradients they have and compute only the lost ones: the same bits "
    "as a run that never failed",
    OnLoss.REDO: "the step is computed again under the new ownership: the same bits, at most one step repeated",
    OnLoss.ROLLBACK: "all return to the newest checkpoint and replay: the same bits, the steps since are repeated",
    OnLoss.SAME_BATCH: "the same samples and weights, added in the backend's order: equal up to the order of addition",
    OnLoss.RESCALE: "lost shares are left out, the mean is over the living tokens: unbiased, a changed batch",
}


def explain_job(path: str, overrides: Sequence[str], *, is_json: bool) -> int:
    """Print what a job would do; returns the exit code, 3 if it cannot fit."""
    loaded = read_job(path, overrides)
    say_warnings(loaded)
    refuse_what_cannot_run(loaded)
    document = explanation(loaded, find_machine())
    if is_json:
        print_document(document)
    else:
        print("\n".join(_text(document)))
    return ExitCode.DONE if document["memory"].get("fits", True) else ExitCode.INFEASIBLE


def refuse_what_cannot_fit(loaded: LoadedJob, machine: MachineFacts) -> None:
    """Refuse a job whose ranks need more memory than there is, before anything is started.

    Raises: InfeasibleError with what is needed and what there is.
    """
    memory = explanation(loaded, machine)["memory"]
    if not memory.get("fits", True):
        raise InfeasibleError(_misfit(memory))


def explanation(loaded: LoadedJob, machine: MachineFacts) -> dict[str, Any]:
    """Everything that ``explain`` tells, as one document.

    Args:
        loaded: The job.
        machine: Whose memory the ranks must fit in, if the job names no cluster.
    """
    job, origins = loaded.job, loaded.origins
    lines = deciding_lines(loaded.program, loaded.layout)
    document: dict[str, Any] = {
        "run": job.run,
        "digest": loaded.digest(),
        "mesh": {"axes": dict(loaded.layout.mesh.axes), "decided_by": lines["mesh"]},
        "split": {"batch": list(loaded.layout.batch_axes), "decided_by": lines["batch"]},
        "sum": [
            {"axis": axis, "route": route.value, "decided_by": lines[f"grads over {axis}"]}
            for axis, route in loaded.layout.routes
        ],
        "on_loss": {
            "rule": job.fault_tolerance.on_loss.value,
            "guarantee": _GUARANTEES[job.fault_tolerance.on_loss],
            "decided_by": origins["fault_tolerance.on_loss"],
        },
        "checkpoints": {
            "every": job.fault_tolerance.checkpoint.every,
            "keep": job.fault_tolerance.checkpoint.keep,
            "decided_by": origins["fault_tolerance.checkpoint.every"],
        },
    }
    model = network_of(job)
    if model is None:
        return document | {
            "model": {"module": job.model.module, "decided_by": origins["model.module"]},
            "work": None,
            "memory": {},
            "ranks": [],
        }
    layout = plan_layout(job, model)
    return document | _sizes(job, model, layout, origins, machine)


def _sizes(
    job: Job,
    model: Network,
    layout: ReplicatedLayout,
    origins: Mapping[str, str],
    machine: MachineFacts,
) -> dict[str, Any]:
    ranks = _ranks(job, layout)
    return {
        "model": {
            "network": model.name,
            "parameters": layout.num_parameters,
            "decided_by": origins[network_key(job)],
        },
        "work": {
            "tokens_per_step": layout.tokens_per_step,
            "samples_per_step": layout.batch,
            "parts": layout.num_parts,
            "samples_per_part": layout.samples_per_part,
            "microbatch": layout.microbatch,
            "microbatches_per_part": layout.microbatches_per_part,
            "flops_per_step": {
                convention.value: flops * layout.tokens_per_step
                for convention, flops in model.flops_by_convention(layout.sequence).items()
            },
            "decided_by": {
                key: origins[key] for key in ("train.batch", "train.microbatch", "fault_tolerance.shares")
            },
        },
        "ownership": list(_ownership(layout)),
        "ranks": ranks,
        "traffic_formulas": (
            {"reduce": REDUCE_FORMULA, "gather": GATHER_FORMULA}
            if layout.has_fixed_order
            else {"all_reduce": ALL_REDUCE_FORMULA}
        ),
        "memory": _room(job, ranks, machine),
    }


def _ranks(job: Job, layout: ReplicatedLayout) -> list[dict[str, Any]]:
    """Each rank of the whole run: its shares, its memory, what it sends in a step."""
    members = range(layout.devices)
    owners = assign_shares(layout.num_parts, members)
    shares = [shares_of(rank, owners) for rank in members]
    blocks = [len(own_blocks(own, layout.num_parts)) for own in shares]
    states = num_states(job.train.optimizer)
    saves = job.fault_tolerance.checkpoint.every != "off"
    rows = []
    for rank in members:
        memory = rank_memory(
            layout,
            ranks=layout.devices,
            own_parts=len(shares[rank]),
            own_blocks=blocks[rank],
            all_blocks=sum(blocks),
            states=states,
            is_saving=saves and rank == 0,
        )
        traffic = rank_traffic(layout, ranks=layout.devices, own_blocks=blocks[rank])
        rows.append(
            {
                "rank": rank,
                "shares": list(shares[rank]),
                "memory": _memory_document(memory),
                "sends_per_step": {
                    "reduce_bytes": traffic.reduce_bytes,
                    "gather_bytes": traffic.gather_bytes,
                    "total_bytes": traffic.total_bytes,
                },
            }
        )
    return rows


def _memory_document(memory: RankMemory) -> dict[str, int]:
    return {
        "parameters_bytes": memory.parameters_bytes,
        "gradients_bytes": memory.gradients_bytes,
        "optimizer_bytes": memory.optimizer_bytes,
        "exchange_bytes": memory.exchange_bytes,
        "staging_bytes": memory.staging_bytes,
        "total_bytes": memory.total_bytes,
    }


def _ownership(layout: ReplicatedLayout) -> Iterator[dict[str, Any]]:
    """Who computes which share with all ranks, with fewer, and alone."""
    if not layout.has_fixed_order:
        return
    devices = layout.devices
    for ranks in sorted({devices, devices - 1, -(-devices // 2), 1} - {0}, reverse=True):
        owners = assign_shares(layout.num_parts, range(ranks))
        yield {"ranks": ranks, "shares": [list(shares_of(rank, owners)) for rank in range(ranks)]}


def _room(job: Job, ranks: Sequence[Mapping[str, Any]], machine: MachineFacts) -> dict[str, Any]:
    """Whether the ranks fit, as far as their activations are left out."""
    needed = [rank["memory"]["total_bytes"] for rank in ranks]
    note = "activations are not in these figures"
    if job.orchestration.cluster not in (None, THIS_MACHINE):
        node = cluster(job.orchestration.cluster).nodes[0]
        available = node.accelerator.memory_bytes
        return {
            "needed_bytes": max(needed),
            "available_bytes": available,
            "where": f"one {node.accelerator.name} of {job.orchestration.cluster}",
            "fits": available is None or max(needed) <= available,
            "note": note,
        }
    if machine.has_accelerator:
        return {"needed_bytes": max(needed), "where": "one device of this machine", "note": note}
    return {
        "needed_bytes": sum(needed),
        "available_bytes": machine.memory_bytes,
        "where": "all ranks on this machine",
        "fits": sum(needed) <= machine.memory_bytes,
        "note": note,
    }


def _misfit(memory: Mapping[str, Any]) -> str:
    return (
        f"does not fit: {memory['where']} would need {format_bytes(memory['needed_bytes'])} without activations, "
        f"and there are {format_bytes(memory['available_bytes'])}; use a smaller model, fewer devices or fewer shares"
    )


# For people.


def _text(document: Mapping[str, Any]) -> Iterator[str]:
    axes = ", ".join(f"{axis} {size}" for axis, size in document["mesh"]["axes"].items())
    yield _row("mesh", axes, document["mesh"]["decided_by"])
    yield _row(
        "split", f"batch over {', '.join(document['split']['batch'])}", document["split"]["decided_by"]
    )
    for item in document["sum"]:
        yield _row("sum", f"grads over {item['axis']}, route {item['route']}", item["decided_by"])
    yield from _model_lines(document)
    yield from _work_lines(document)
    on_loss, saves = document["on_loss"], document["checkpoints"]
    yield _row("on_loss", on_loss["rule"], on_loss["decided_by"])
    yield f"{'':12}{on_loss['guarantee']}"
    every = saves["every"]
    cadence = f"every {every} steps" if isinstance(every, int) else every
    yield _row("checkpoints", f"{cadence}, the newest {saves['keep']} kept", saves["decided_by"])
    yield from _rank_lines(document)
    memory = document["memory"]
    if memory:
        yield ""
        known = f" of {format_bytes(memory['available_bytes'])}" if memory.get("available_bytes") else ""
        yield f"memory: {memory['where']}: {format_bytes(memory['needed_bytes'])}{known}; {memory['note']}"
    if not memory.get("fits", True):
        yield _misfit(memory)


def _row(subject: str, value: str, decided_by: str) -> str:
    return f"{subject:12}{value:52}  {decided_by}".rstrip()


def _model_lines(document: Mapping[str, Any]) -> Iterator[str]:
    model = document["model"]
    if "module" in model:
        yield _row("model", model["module"], model["decided_by"])
        yield f"{'':12}its shapes are known to torch only: no figures per rank"
        return
    yield _row("model", f"{model['network']}, {model['parameters']:,} parameters", model["decided_by"])


def _work_lines(document: Mapping[str, Any]) -> Iterator[str]:
    work = document["work"]
    if work is None:
        return
    decided_by = work["decided_by"]
    yield _row(
        "batch",
        f"{work['samples_per_step']} samples, {work['tokens_per_step']:,} tokens a step",
        decided_by["train.batch"],
    )
    flops = ", ".join(f"{count:.4g} ({convention})" for convention, count in work["flops_per_step"].items())
    yield f"{'':12}FLOPs a step, forward and backward: {flops}"
    noun = "shares" if document["ownership"] else "parts, one a device (shares off)"
    yield _row(
        "shares",
        f"{work['parts']} {noun}, {work['samples_per_part']} samples each",
        decided_by["fault_tolerance.shares"],
    )
    for item in document["ownership"]:
        owners = "  ".join(f"{rank}: {_listed(shares)}" for rank, shares in enumerate(item["shares"][:8]))
        more = "  ..." if item["ranks"] > 8 else ""
        yield f"{'':12}with {item['ranks']} ranks  {owners}{more}"
    yield _row(
        "microbatch",
        f"{work['microbatch']} samples, {work['microbatches_per_part']} in a share",
        decided_by["train.microbatch"],
    )


_MEMORY_COLUMNS = ("parameters", "gradients", "optimizer", "exchange", "staging", "total")


def _rank_lines(document: Mapping[str, Any]) -> Iterator[str]:
    if not document["ranks"]:
        return
    yield ""
    yield (
        f"{'rank':10}{'shares':10}"
        + "".join(f"{column:>12}" for column in _MEMORY_COLUMNS)
        + f"{'sends/step':>14}"
    )
    for first, last, row in _equal_rows(document["ranks"]):
        name = str(first) if first == last else f"{first}-{last}"
        sizes = "".join(f"{format_bytes(row['memory'][f'{column}_bytes']):>12}" for column in _MEMORY_COLUMNS)
        sent = format_bytes(row["sends_per_step"]["total_bytes"])
        shares = str(len(row["shares"])) if first != last else _listed(row["shares"])
        yield f"{name:10}{shares:10}{sizes}{sent:>14}"
    for phase, formula in document["traffic_formulas"].items():
        sent = format_bytes(document["ranks"][0]["sends_per_step"].get(f"{phase}_bytes", 0))
        yield f"{phase}: {formula}" + (f"; rank 0: {sent}" if phase != "all_reduce" else "")


def _equal_rows(ranks: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Runs of neighbouring ranks whose figures are equal: first rank, last rank, figures."""
    start = 0
    for rank in range(1, len(ranks) + 1):
        if rank == len(ranks) or _figures(ranks[rank]) != _figures(ranks[start]):
            yield start, rank - 1, ranks[start]
            start = rank


def _figures(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return len(row["shares"]), row["memory"], row["sends_per_step"]


def _listed(shares: Sequence[int]) -> str:
    """Neighbouring shares as a range.

    >>> _listed([0, 1, 2]), _listed([3]), _listed([])
    ('0-2', '3', '-')
    """
    if not shares:
        return "-"
    return str(shares[0]) if len(shares) == 1 else f"{shares[0]}-{shares[-1]}"
