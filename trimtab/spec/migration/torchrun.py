"""A job as a line for torchrun: who starts its ranks by hand on every machine."""

import math
import shlex

from trimtab.spec.cards import Engine
from trimtab.spec.migration.settings import Export
from trimtab.spec.migration.sheets import Sheet
from trimtab.spec.migration.targets import Exportable

RANK_MODULE = "trimtab.runtime.elastic_worker"
"""What torchrun starts on each device; docs/engines.md tells how it finds its run."""

_DEVICES_PER_NODE = 8
"""Devices of one machine where nobody says: what most machines with accelerators hold."""


def write_torchrun(exportable: Exportable) -> Export:
    """The line to give on every machine of the job; the rest of the job stays in its file."""
    sheet, job = Sheet(), exportable.loaded.job
    words, warning = launcher_words(exportable)
    sheet.warnings += [warning] if warning else []
    sheet.carry("orchestration.devices", str(job.orchestration.devices), *words[:2])
    restarts = f"--max-restarts {job.fault_tolerance.restarts.node_loss}"
    sheet.carry("fault_tolerance.restarts.node_loss", str(job.fault_tolerance.restarts.node_loss), restarts)
    grace = f"--shutdown-timeout {max(1, math.ceil(job.orchestration.grace))}"
    sheet.carry("orchestration.grace", f"{job.orchestration.grace:g}s", grace)
    sheet.carry("run", job.run, f"--rdzv-id {job.run}")
    if job.orchestration.engine is not Engine.TORCHRUN:
        reason = (
            "under torchrun all ranks start again at the newest checkpoint: nothing survives inside a step"
        )
        sheet.change("orchestration.engine", job.orchestration.engine.value, "torchrun", reason=reason)
    line = [
        "torchrun",
        *words,
        restarts,
        grace,
        f"--rdzv-id {job.run}",
        "--rdzv-backend c10d",
        "--rdzv-endpoint HOST:PORT",
    ]
    return Export(
        target="torchrun",
        text=f"{' '.join([*line, '-m', RANK_MODULE, shlex.quote(exportable.name)])}\n",
        settings=tuple(sheet.settings),
        warnings=tuple(sheet.warnings),
    )


def launcher_words(exportable: Exportable) -> tuple[list[str], str]:
    """How many machines with how many devices each, as torchrun takes it; and a warning if it was guessed."""
    devices = exportable.loaded.job.orchestration.devices
    given = exportable.devices_per_node
    per_node = min(devices, given or _DEVICES_PER_NODE)
    if devices % per_node:
        per_node = next(count for count in range(per_node, 0, -1) if devices % count == 0)
    warning = ""
    if given is None and devices > per_node:
        warning = f"nothing says how many devices a machine holds: written for {per_node}"
    return [f"--nnodes {devices // per_node}", f"--nproc-per-node {per_node}"], warning
