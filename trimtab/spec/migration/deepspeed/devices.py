"""How many devices a DeepSpeed configuration is for, and how it groups them.

The file names degrees of model parallelism but not the number of processes: the launcher counts those.
Ranks of one tensor group are neighbours, then those of one sequence, then data, then stages.

Source: DeepSpeed 0.19, deepspeed/utils/groups.py (tensor inside data), deepspeed/__init__.py (sequence inside
data), deepspeed/runtime/pipe/topology.py (pipe, data, model).
"""

import math

from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout, over
from trimtab.spec.migration.settings import MigrationError

TENSOR = ("tensor_parallel.autotp_size", "tensor_parallel.tp.tp_size")
SEQUENCE = "sequence_parallel_size"
STAGES = "pipeline.stages"
EXPERTS = "expert_parallel.autoep_size"
MICS = "zero_optimization.mics_shard_size"
HPZ = "zero_optimization.zero_hpz_partition_size"
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def read_layout(draft: Draft, devices: int | None) -> Layout:
    """The groups that the configuration makes of so many devices; None: of as many as it needs.

    Raises: MigrationError if the devices cannot be grouped so.
    """
    tp = max(_degree(draft, flag) for flag in TENSOR)
    cp, pp = _degree(draft, SEQUENCE), _degree(draft, STAGES)
    ep = _degree(draft, EXPERTS) if draft.switch("expert_parallel.enabled") else 1
    shard = max(draft.integer(flag) or 1 for flag in (MICS, HPZ))
    replicas = _replicas(draft, devices, model=tp * cp * pp, groups=math.lcm(ep, shard))
    for flag, group in ((EXPERTS, ep), (MICS if draft.integer(MICS) else HPZ, shard)):
        if replicas % group:
            raise MigrationError(
                f"{flag} is {group}, which does not divide the {replicas} data-parallel ranks"
            )
    if ep > 1 and shard > 1:
        raise MigrationError(f"{EXPERTS} and {MICS} or {HPZ} group the same ranks in two ways")
    dp = shard if shard > 1 else replicas
    experts_over = ("ep",) if ep > 1 else ()
    return Layout(pp=pp, replica=replicas // dp, dp=dp, ep=ep, cp=cp, tp=tp, experts_over=experts_over)


def answer_devices(draft: Draft, layout: Layout) -> None:
    """Write the mesh, and give the settings that only it speaks of their fate."""
    batch = f"SPLIT batch {over(layout.batch_axes)}"
    sequence = "SPLIT sequence OVER cp USING ulysses"
    draft.put({"orchestration.devices": layout.devices}, layout.mesh)
    draft.put(*((sequence, batch) if layout.has_experts_beside_sequences else (batch,)))
    draft.changed("data_parallel_size", batch, reason="the axis takes the devices that the others leave")
    if layout.cp > 1:
        draft.carried(SEQUENCE, layout.mesh, sequence)
    else:
        draft.irrelevant(SEQUENCE, "one part is no split")


def _degree(draft: Draft, flag: str) -> int:
    """How many devices work together; 0 switches a kind of parallelism off."""
    degree = draft.integer(flag) or 1
    if degree < 1:
        raise MigrationError(f"{flag} is {degree}; it must be above 0")
    return degree


def _replicas(draft: Draft, devices: int | None, *, model: int, groups: int) -> int:
    """Data-parallel ranks: what DeepSpeed calls the world size when it checks the batch."""
    if devices is not None:
        if devices % model:
            raise MigrationError(
                f"{devices} devices cannot be cut into groups of {model}, "
                "tensor times sequence times pipeline parallelism"
            )
        return devices // model
    if draft.integer("data_parallel_size"):
        return _degree(draft, "data_parallel_size")
    batch, micro, accumulation = (draft.integer(flag) for flag in BATCH)
    if batch and micro and accumulation and batch % (micro * accumulation) == 0:
        return max(1, batch // (micro * accumulation))
    draft.warnings.append(
        f"A DeepSpeed file does not say how many devices train; {groups * model} stand in, the fewest that "
        "it can mean. Import it with --devices N, or set orchestration.devices."
    )
    return groups
