"""Tensors that autograd keeps for a backward pass: those that are parameters are made whole before they are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from trimtab.runtime import compat
from trimtab.runtime.stored.unit import Unit


@dataclass(frozen=True, kw_only=True, slots=True)
class _Saved:
    """What autograd keeps.

    Args:
        tensor: Cut off from what made it: a cycle would keep it for ever.
        num_writes: When it was saved.
        unit: Whose memory it shares; None for what are no parameters.
    """

    tensor: Tensor
    num_writes: int
    unit: Unit | None


class SavedTensors:
    """Looks after what autograd saves between ``begin`` and ``end``.

    Args:
        by_memory: Units, by what ``compat.storage_of`` says of their memory.
        gather: Makes a unit whole.
    """

    def __init__(self, by_memory: Mapping[int, Unit], gather: Callable[[Unit], None]) -> None:
        self._by_memory, self._gather = by_memory, gather
        self._hooks: saved_tensors_hooks | None = None

    def begin(self) -> None:
        """A forward pass begins that a backward pass follows."""
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()

    def end(self) -> None:
        """The forward pass is over, or has failed. May be called twice."""
        if self._hooks is not None:
            self._hooks.__exit__()
            self._hooks = None

    def _pack(self, tensor: Tensor) -> _Saved:
        unit = self._by_memory.get(compat.storage_of(tensor))
        return _Saved(tensor=tensor.detach(), num_writes=compat.num_writes(tensor), unit=unit)

    def _unpack(self, saved: _Saved) -> Tensor:
        if saved.unit is not None:
            self._gather(saved.unit)
        if compat.num_writes(saved.tensor) != saved.num_writes:  # Torch leaves this check to who packs.
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{saved.tensor.dtype} {list(saved.tensor.shape)}"
            )
        return saved.tensor
