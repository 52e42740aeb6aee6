"""Which device computes, and which backend connects it: the one place that names vendors."""

import os
import platform
import resource
from dataclasses import dataclass

import numpy as np
import torch

from trimtab.runtime.compat import use_deterministic_kernels


@dataclass(frozen=True, kw_only=True, slots=True)
class Capability:
    """What a device type needs.

    Args:
        backend: The torch.distributed backend, in the vendor's spelling.
        group_class: The process-group class of that backend in ``torch.distributed``.
        has_fused_optimizer: Whether torch's fused AdamW and SGD run on it.
    """

    backend: str
    group_class: str
    has_fused_optimizer: bool


_CAPABILITIES = {
    "cpu": Capability(backend="gloo", group_class="ProcessGroupGloo", has_fused_optimizer=True),
    "cuda": Capability(backend="nccl", group_class="ProcessGroupNCCL", has_fused_optimizer=True),
    "rocm": Capability(backend="rccl", group_class="ProcessGroupNCCL", has_fused_optimizer=True),
    "xpu": Capability(backend="xccl", group_class="ProcessGroupXCCL", has_fused_optimizer=True),
    "npu": Capability(backend="hccl", group_class="ProcessGroupHCCL", has_fused_optimizer=False),
}


def device_kind() -> str:
    """The key of the capability table for this machine: the accelerator that torch sees, else ``cpu``."""
    if not torch.accelerator.is_available():
        return "cpu"
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return "rocm" if kind.type == "cuda" and torch.version.hip else kind.type


def capability(kind: str) -> Capability:
    """What this device kind needs; unknown kinds count as a CPU with gloo."""
    return _CAPABILITIES.get(kind, _CAPABILITIES["cpu"])


def torch_device(kind: str, local_rank: int) -> torch.device:
    """The device of one rank on its node."""
    if kind == "cpu":
        return torch.device("cpu")
    name = "cuda" if kind == "rocm" else kind
    return torch.device(name, local_rank % torch.accelerator.device_count())


def fingerprint(kind: str, threads: int) -> dict[str, str]:
    """What must be equal on every rank of an exact run: whoever differs may compute other bits."""
    return {
        "device": kind if kind == "cpu" else f"{kind} {torch.get_device_module().get_device_name()}",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": str(threads),
    }


def peak_flops_per_s(kind: str, threads: int) -> float | None:
    """The nominal peak of one rank in fp32, where it can be told from the system; None elsewhere.

    On a CPU: clock rate in /proc/cpuinfo x threads x FLOPs per cycle (two FMA units of the vector width: 64 with
    AVX-512, 32 with AVX2, 16 otherwise). A nominal figure: turbo clocks can exceed it.
    """
    if kind != "cpu":
        return None
    per_cycle = {"AVX512": 64, "AVX2": 32}.get(torch.backends.cpu.get_cpu_capability(), 16)
    if not os.path.exists("/proc/cpuinfo"):
        return None
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        clocks = [float(line.split(":")[1]) for line in file if line.startswith("cpu MHz")]
    return max(clocks) * 1e6 * per_cycle * threads if clocks else None


def peak_memory_bytes(kind: str) -> int:
    """The most that this process has held on its device: tensors by the allocator's count, on a CPU resident memory."""
    if kind == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(torch.accelerator.max_memory_allocated())


def prepare(kind: str, threads: int) -> None:
    """Fix what bits depend on: the number of threads, and deterministic kernels."""
    torch.set_num_threads(threads)
    use_deterministic_kernels(warn_only=kind == "cpu")
    # A debugging aid that writes every new tensor twice; torch sets it as a property of the module, unknown to types.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 - see above
