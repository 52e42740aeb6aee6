"""Exported variables: those of the network go with the job, those of Megatron's own code stay behind."""

import re

from trimtab.spec.migration.megatron.draft import Draft

EXPORT = "export "
"""What the name of a variable begins with, among flags."""

_CARRIED = re.compile(r"(NCCL|TORCH_NCCL|GLOO|UCX|NVSHMEM)_\w+|PYTORCH_(CUDA_)?ALLOC_CONF|OMP_NUM_THREADS")
_LEFT = re.compile(
    r"NVTE_\w+|CUDA_DEVICE_MAX_CONNECTIONS|CUDA_LAUNCH_BLOCKING|CUBLAS_WORKSPACE_CONFIG|NVLINK_\w+"
)


def is_known_variable(name: str) -> bool:
    """Whether a variable speaks to the network or to kernels; all others are the script's own."""
    return _CARRIED.fullmatch(name) is not None or _LEFT.fullmatch(name) is not None


def read_environment(draft: Draft) -> None:
    """Carry the variables of communication libraries, and drop those that only Megatron's kernels read."""
    for flag in draft.flags:
        if not flag.name.startswith(EXPORT):
            continue
        name = flag.name.removeprefix(EXPORT)
        if not _CARRIED.fullmatch(name):
            draft.drop(flag.name, "read by Megatron-LM's kernels and streams only")
        elif flag.is_known:
            path = f"orchestration.environment.set.{name}"
            draft.set(path, flag.text)
            draft.carry(flag.name, path)
