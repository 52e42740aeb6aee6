"""From a job to what an engine is asked to start."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from trimtab.app.machines import MachineFacts
from trimtab.app.seating import seating_of
from trimtab.catalog import THIS_MACHINE, UnknownNameError, cluster, price_of
from trimtab.engines.launch import Launch, clean_environment
from trimtab.plan import trains_as_replicas
from trimtab.policy import Budget, Limits
from trimtab.spec import Job, parse_strategy
from trimtab.spec.constants import rule_of
from trimtab.spec.injections import Injection
from trimtab.spec.resolved import plain_values
from trimtab.terms import Phase, read_address

RANK_MODULE = "trimtab.runtime.worker"
FORK_SERVER_MODULE = "trimtab.runtime.fork_server"
SCRIPT_MODULE = "trimtab.runtime.script_worker"
_LOADED_BY_PLANS = ("torch.fx.experimental.symbolic_shapes",)
"""By torch, at the first backward pass that begins at a gradient, as those of pieces and stages do."""
_BEATS_PER_LIMIT = 4
"""Heartbeats within the silence that is tolerated: three in a row may be late."""


def build_launch(
    job: Job,
    *,
    folder: Path,
    attempt: int,
    first_incarnation: int,
    injections: Sequence[Injection],
    is_resumed: bool,
    inherited: Mapping[str, str],
    working_folder: Path,
    machine: MachineFacts,
    job_file: str | None = None,
) -> Launch:
    """What an engine starts for one attempt of a run.

    Args:
        job: With every ``auto`` resolved.
        folder: Of the run.
        attempt: From 1.
        first_incarnation: Number of every rank's first process, above all that earlier attempts used.
        injections: Faults to make happen.
        is_resumed: Whether to continue from the newest checkpoint.
        inherited: The environment of the caller, of which the ranks see an allow-list.
        working_folder: What relative paths in the job file are relative to.
        machine: That the command runs on.
        job_file: The file that the user started the run by; None if there was none.

    Raises: UnknownNameError for a cluster that the catalog does not know.
    """
    card, tolerance = job.orchestration, job.fault_tolerance
    program = parse_strategy(job.parallelism.text, source="parallelism")
    is_replicated = trains_as_replicas(job, program)
    return Launch(
        run=folder.name,
        folder=folder.resolve(),
        attempt=attempt,
        devices=card.devices,
        module=RANK_MODULE if job.script is None else SCRIPT_MODULE,
        fork_server=FORK_SERVER_MODULE if job.script is None else None,
        loaded_once=() if job.script is not None or is_replicated else _LOADED_BY_PLANS,
        rank_settings={
            "job": plain_values(job),
            "injections": [injection.to_json() for injection in injections],
            "beat_s": tolerance.detection.limit_s("heartbeat") / _BEATS_PER_LIMIT,
            "working_folder": str(working_folder),
            "job_file": job_file,
            "resume": is_resumed,
            "machine": {
                "cores": machine.cores,
                "memory_bytes": machine.memory_bytes,
                "has_accelerator": machine.has_accelerator,
            },
        },
        environment=clean_environment(
            inherited,
            run=folder.name,
            threads=card.threads,
            passed=(*card.environment.passed, *tolerance.checkpoint.key_variables),
            added=card.environment.assigned,
        ),
        limits=limits_of(job),
        num_shares=0 if tolerance.shares == "off" else int(tolerance.shares),
        on_loss=rule_of(job, is_replicated=is_replicated),
        is_replacing=tolerance.replace,
        seating=seating_of(job, program, machine),
        grace_s=card.grace,
        first_incarnation=first_incarnation,
        script=() if job.script is None else (job.script.file, *job.script.args),
        max_script_restarts=tolerance.restarts.script,
        device_price_usd_per_hour=device_price(job),
        hosts=card.hosts,
        listen=(read_address(card.listen) if card.listen else None) or ("127.0.0.1", 0),
        interface=card.interface,
        token_file=None if card.token_file is None else (working_folder / card.token_file).resolve(),
        patience_s=card.unreachable,
    )


def limits_of(job: Job) -> Limits:
    """The deadlines that the detection section of a job sets."""
    limit_s, restarts = job.fault_tolerance.detection.limit_s, job.fault_tolerance.restarts
    return Limits(
        heartbeat_s=limit_s("heartbeat"),
        progress_s=limit_s("progress"),
        step_s=limit_s("step"),
        phases_s={
            Phase.START: limit_s("first_step"),
            Phase.CHECKPOINT: limit_s("save"),
            Phase.EVALUATE: limit_s("evaluation"),
        },
        start_s=limit_s("start"),
        park_s=limit_s("park"),
        stop_s=job.orchestration.grace / 2,
        budget=Budget(
            node_losses=restarts.node_loss,
            user_errors=restarts.user_error,
            forgiven_after=restarts.forgiven_after,
        ),
    )


def device_price(job: Job) -> float | None:
    """Dollars for an hour of one device: the job's own price, else the catalog's for its cluster, else None.

    Raises: UnknownNameError for a cluster that the catalog does not know.
    """
    card = job.orchestration
    if card.price_usd_per_device_hour is not None or card.cluster in (None, THIS_MACHINE):
        return card.price_usd_per_device_hour
    device = cluster(card.cluster).nodes[0].accelerator.name
    try:
        return price_of(device).usd_per_device_hour
    except UnknownNameError:  # a device that nobody rents out
        return None
