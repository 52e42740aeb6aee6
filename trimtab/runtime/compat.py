"""The private names of torch 2.13 that the runtime needs, each behind a function of our own and tested.

Raw process-group objects are used (not ``init_process_group``) because an epoch must be droppable and re-formable
in place; their collectives are methods with private spellings.
"""

import importlib
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "PrefixStore",
    "TCPStore",
    "TorchDispatchMode",
    "all_gather",
    "all_to_all",
    "compile_here",
    "copy_each",
]

TCPStore: Any = dist.__dict__["TCPStore"]
"""Public by documentation, missing from torch's typed exports."""

PrefixStore: Any = dist.__dict__["PrefixStore"]
"""As ``TCPStore``."""

swap_tensors: Any = torch.utils.swap_tensors
"""Public, and without types."""


def copy_each(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy every source into its target, in as few kernel launches as the device allows."""
    torch._foreach_copy_(targets, sources)


def num_writes(tensor: Tensor) -> int:
    """How often a tensor was written in place; differs from an earlier reading if it was written in between."""
    return int(tensor._version)


def all_to_all(
    group: Any, output: Tensor, source: Tensor, output_splits: list[int], input_splits: list[int]
) -> Any:
    """Start an all-to-all of one-dimensional tensors on a raw process group; returns its Work."""
    return group.alltoall_base(output, source, output_splits, input_splits, dist.AllToAllOptions())


def all_gather(group: Any, output: Tensor, source: Tensor) -> Any:
    """Start an all-gather into one tensor on a raw process group; returns its Work."""
    options = getattr(torch.distributed.distributed_c10d, "AllgatherOptions")()  # noqa: B009 - not in torch's stubs
    return group._allgather_base(output, source, options)


def reduce_scatter(group: Any, output: Tensor, source: Tensor, options: Any) -> Any:
    """Start a reduce-scatter of one tensor into equal pieces on a raw process group; returns its Work."""
    return group._reduce_scatter_base(output, source, options)


def storage_of(tensor: Tensor) -> int:
    """A number that tensors have in common if and only if they share storage, on ``meta`` too, where no address is."""
    return int(tensor.untyped_storage()._cdata)


def place_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Put a parameter where a module keeps one, past the checks of ``setattr`` unless the module has its own.

    ``nn.RNNBase`` has: it keeps its weights a second time.
    """
    if type(module).__setattr__ is nn.Module.__setattr__:
        module._parameters[name] = parameter
    else:
        setattr(module, name, parameter)


def has_hooks(parameter: nn.Parameter) -> bool:
    """Whether somebody listens to the gradient of a parameter."""
    return bool(parameter._backward_hooks) or bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Torch's attention on CPUs [B, H, T, E], as its public function runs it; and the logarithm of each softmax's sum."""
    found: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        q, k, v, 0.0, True
    )
    return found


def causal_attention_gradients(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, logarithms: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``q``, ``k`` and ``v`` [B, H, T, E], as autograd takes them."""
    found: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            gradient, q, k, v, output, logarithms, 0.0, True
        )
    )
    return found


def use_deterministic_kernels(*, warn_only: bool) -> None:
    """As ``torch.use_deterministic_algorithms``, which loads torch's compiler only to tell it the same."""
    if "torch._inductor" in sys.modules:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        return
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"  # what the compiler reads if it is loaded later
    torch.set_deterministic_debug_mode("warn" if warn_only else "error")


def compile_here() -> None:
    """Let torch's compiler work in this process: by itself it starts others, which outlive a rank that is killed."""
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.compile_threads = 1
