"""Parameters, gradients and optimizer state as flat vectors, with the logical tensors as views.

Each parameter starts at a multiple of 16 elements (64 bytes): vectorised kernels then treat the same elements the
same way wherever a vector is cut, and so give the same bits. Matrices that are trained stand before the rest, so that
weight decay covers one contiguous range.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from trimtab.plan import ALIGNMENT
from trimtab.runtime import compat
from trimtab.runtime.optimizers import is_decayed

(
    LOSS_SUM,
    NUM_TARGETS,
    STOP_REQUESTS,
    BORDER_REQUESTS,
    SKIP_REQUESTS,
    NORM_LIMIT,
    SPIKE_LOSS,
    SPIKE_NORM,
) = range(8)
"""Positions inside the tail that travels behind the gradients: sums, requests that all must agree on, and what the lead
takes for ordinary, by which all judge alike: the gradient norm of sound devices, and loss and norm of a calm run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Where one logical parameter stands in the flat vector (``offset`` in elements)."""

    name: str
    shape: tuple[int, ...]
    offset: int
    numel: int


class FlatState:
    """The replicated parameters of one rank in one fp32 vector.

    Args:
        parameters: (logical name, parameter), tied ones once. Their data move into the flat vector.

    Attributes:
        entries: Where each parameter stands.
        num_elements: Length of the flat vector with its gaps, a multiple of 16. Gaps stay zero.
        decay_end: Weight decay applies to elements below it; see ``is_decayed``.
        parameters: The flat vector itself.
    """

    def __init__(self, parameters: Sequence[tuple[str, Parameter]]) -> None:
        decayed = [(n, p) for n, p in parameters if is_decayed(p.shape, is_trained=p.requires_grad)]
        others = [(n, p) for n, p in parameters if not is_decayed(p.shape, is_trained=p.requires_grad)]
        entries: list[Entry] = []
        offset = 0
        self.decay_end = 0
        for number, (name, parameter) in enumerate((*decayed, *others), 1):
            entries.append(
                Entry(name=name, shape=tuple(parameter.shape), offset=offset, numel=parameter.numel())
            )
            offset += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
            if number == len(decayed):
                self.decay_end = offset
        self.entries = tuple(entries)
        self.num_elements = offset
        device = parameters[0][1].device
        self.parameters = torch.zeros(offset, dtype=torch.float32, device=device)
        self._modules = [parameter for _, parameter in (*decayed, *others)]
        with torch.no_grad():
            for entry, parameter in zip(self.entries, self._modules, strict=True):
                view = self.view(self.parameters, entry)
                view.copy_(parameter)
                parameter.data = view

    @staticmethod
    def view(flat: Tensor, entry: Entry) -> Tensor:
        """One logical tensor inside a vector of this layout."""
        return flat[entry.offset : entry.offset + entry.numel].view(entry.shape)

    def named_views(self, flat: Tensor) -> dict[str, Tensor]:
        """All logical tensors inside a vector of this layout, by name."""
        return {entry.name: self.view(flat, entry) for entry in self.entries}

    def named_group_views(self, decayed: Tensor, others: Tensor) -> dict[str, Tensor]:
        """All logical tensors inside the two parts that ``groups`` cuts a vector into, by name."""
        views = {}
        for entry in self.entries:
            flat, base = (decayed, 0) if entry.offset < self.decay_end else (others, self.decay_end)
            start = entry.offset - base
            views[entry.name] = flat[start : start + entry.numel].view(entry.shape)
        return views

    def drop_gradients(self) -> None:
        """Let the next backward pass make new gradients."""
        for parameter in self._modules:
            parameter.grad = None

    def move_gradients_to(self, leaf: Tensor) -> None:
        """Copy the gradients into ``leaf`` (at least ``num_elements`` long); later backward passes add to it there.

        Cheaper than adding the first ones to zeros: two passes over memory instead of four.
        """
        views = [self.view(leaf, entry) for entry in self.entries]
        found = [(view, p.grad) for view, p in zip(views, self._modules, strict=True)]
        compat.copy_each([v for v, g in found if g is not None], [g for _, g in found if g is not None])
        for view, gradient in found:
            if gradient is None:  # a parameter that this microbatch does not reach
                view.zero_()
        for view, parameter in zip(views, self._modules, strict=True):
            parameter.grad = view

    def groups(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The decayed and the other part of a vector of this layout."""
        return flat[: self.decay_end], flat[self.decay_end : self.num_elements]
