"""Tensors that wait in the host's memory while the device does without them: the one place where OFFLOAD puts anything.

On an accelerator they lie in pages that stay where they are (pinned), so that a copy needs no detour. What is on its way
is counted, each byte in the direction in which it goes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


class HostMemory:
    """The host's memory as one rank uses it. One thread makes all calls.

    Args:
        device: That the rank computes on; torch's default device if None.
        making: Is entered while memory of the host is taken: for who counts the device's.

    Attributes:
        to_host_bytes, to_device_bytes: Sent so far.
    """

    def __init__(
        self,
        device: torch.device | None = None,
        *,
        making: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._device = torch.empty(0).device if device is None else device
        self._making = making
        self.to_host_bytes = self.to_device_bytes = 0

    def zeros(self, numel: int) -> Tensor:
        """A vector of so many zeros in fp32."""
        return self._empty((numel,), torch.float32).zero_()

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor of the device, which may let its own go."""
        copy = self._empty(tensor.shape, tensor.dtype)
        self.put(copy, tensor)
        return copy

    def put(self, waiting: Tensor, tensor: Tensor) -> None:
        """Write what the device has into what waits."""
        waiting.copy_(tensor)
        self.to_host_bytes += tensor.numel() * tensor.element_size()

    def fetch(self, waiting: Tensor) -> Tensor:
        """A copy on the device; what waits stays."""
        # Whatever the device does next waits for the copy, ``put`` among it.
        tensor = torch.empty(waiting.shape, dtype=waiting.dtype, device=self._device)
        tensor.copy_(waiting, non_blocking=True)
        self.to_device_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        with self._making():
            if self._device.type in ("cpu", "meta"):  # The host itself, as in tests; or no memory at all.
                return torch.empty(tuple(shape), dtype=dtype, device=self._device)
            return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)
