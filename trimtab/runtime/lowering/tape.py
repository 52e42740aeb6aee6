"""What a forward operator leaves for its gradient: the graph of that one operator, and no tensor that has a name.

A plan says which values stay from the forward to the backward pass. Autograd would keep others alive: so a tensor that
belongs to a named value is noted by name, and looked up again when the gradient is made. By then it is what was kept,
computed again or gathered again. So is a parameter in the type of use: each microbatch in flight would keep a copy of its own.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

from trimtab.runtime.compat import storage_of

Lookup = Callable[[str], Tensor]
"""A value by name."""


class Tape:
    """The graph of one operator.

    Args:
        output: Where its gradient comes in.
        inputs: Where gradients come out, in order of the operator's tensors; None for tensors without one.
        saved: What autograd saved.
    """

    def __init__(self, output: GradientEdge, inputs: Sequence[GradientEdge | None], saved: "_Saved") -> None:
        self._output, self._inputs, self._saved = output, tuple(inputs), saved

    def gradients(self, gradient: Tensor, wanted: Sequence[int], lookup: Lookup) -> list[Tensor]:
        """Gradients of some of the operator's tensors; may be called once.

        Args:
            gradient: Of the output.
            wanted: Which, by place among the operator's tensors.
            lookup: What named values are now.
        """
        edges = [self._inputs[place] for place in wanted]
        assert None not in edges, "a gradient of whole numbers is asked for"
        self._saved.lookup = lookup
        found = torch.autograd.grad([self._output], edges, [gradient])  # type: ignore[arg-type]  # None is ruled out
        self._saved.lookup = None
        return list(found)


def record(
    function: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    names: Sequence[str],
    output_name: str,
    *,
    stays: Callable[[str], bool],
) -> tuple[Tensor, Tape]:
    """Run an operator and keep its graph.

    Args:
        function: From the tensors to one tensor.
        tensors: Detached; those of floating point get gradients.
        names: Of the values that they are.
        output_name: Of what comes out.
        stays: Whether a value can be looked up by name when the gradient is made.

    Returns: The output, detached and contiguous, and the tape.
    """
    floating = [place for place, tensor in enumerate(tensors) if tensor.is_floating_point()]
    saved = _Saved({name: tensor for name, tensor in zip(names, tensors, strict=True) if stays(name)})
    with torch.enable_grad(), saved_tensors_hooks(saved.pack, saved.unpack), _recorded(saved):
        anchored = _Anchor.apply(_token(), *(tensors[place] for place in floating))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        arguments = list(tensors)
        for place, tensor in zip(floating, anchored, strict=True):
            arguments[place] = tensor
        output = function(*arguments).contiguous()
    edges: list[GradientEdge | None] = [None] * len(tensors)
    for place, tensor in zip(floating, anchored, strict=True):
        edges[place] = get_gradient_edge(tensor)
    edge = get_gradient_edge(output)
    output = output.detach()
    saved.close(output_name if stays(output_name) else None, output)
    return output, Tape(edge, edges, saved)


def in_type(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter in the type of use, for an operator; it is made again for the gradient, not kept."""
    converted = parameter.to(dtype)
    if converted is not parameter and _running.saved is not None:
        _running.saved.note_conversion(converted, parameter)
    return converted


class _Running(threading.local):
    """What the operator saves that this thread is recording."""

    saved: "_Saved | None" = None


_running = _Running()


@contextmanager
def _recorded(saved: "_Saved") -> Iterator[None]:
    outer, _running.saved = _running.saved, saved
    try:
        yield
    finally:
        _running.saved = outer


class _Anchor(torch.autograd.Function):
    """Tensors as the start of a graph that does not hold them, as a leaf would."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return (None,) * (1 + len(gradients))


def _token() -> Tensor:
    return torch.zeros((), requires_grad=True)


@dataclass(slots=True)
class _Note:
    """A saved tensor: itself, or the name of the value that it is a view of, in another type if one is said."""

    tensor: Tensor | None
    name: str
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype | None = None


class _Saved:
    """What autograd saves of one operator."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        self.lookup: Lookup | None = None
        self._named: dict[int, tuple[str, Tensor]] | None = {
            storage_of(tensor): (name, tensor) for name, tensor in named.items()
        }
        self._conversions: dict[int, tuple[str, Tensor]] = {}
        self._notes: list[_Note] = []

    def note_conversion(self, converted: Tensor, parameter: Tensor) -> None:
        """What can be made again of a value that has a name is not kept."""
        assert self._named is not None, "conversions are made while the operator runs"
        known = self._named.get(storage_of(parameter))
        if known is not None and parameter.is_contiguous() and parameter.shape == known[1].shape:
            self._conversions[storage_of(converted)] = known[0], converted.detach()

    def pack(self, tensor: Tensor) -> _Note:
        """Note a tensor, by name if it belongs to a value."""
        # Detached: an output that its own operator saves would keep the graph alive, and the graph it, for ever.
        note = _Note(tensor.detach(), "", tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        assert self._named is not None, "nothing is saved once the operator has run"
        known = self._named.get(storage_of(tensor))
        conversion = self._conversions.get(storage_of(tensor))
        if known is not None:
            _rename(note, *known)
        elif conversion is not None:
            _rename(note, *conversion)
            note.dtype = conversion[1].dtype
        self._notes.append(note)
        return note

    def unpack(self, note: _Note) -> Tensor:
        """The tensor of a note."""
        if note.tensor is not None:
            return note.tensor
        assert self.lookup is not None, "gradients are asked for by `Tape.gradients`"
        value = self.lookup(note.name)
        if note.dtype is not None:
            value = value.to(note.dtype)
        return value.as_strided(note.size, note.stride, value.storage_offset() + note.offset)

    def close(self, name: str | None, output: Tensor) -> None:
        """The operator has run: its output may have been saved before it had a name."""
        pointer = storage_of(output)
        for note in self._notes:
            if name is not None and note.tensor is not None and storage_of(note.tensor) == pointer:
                _rename(note, name, output)
        self._named = None
        self._conversions.clear()
        self._notes.clear()


def _rename(note: _Note, name: str, value: Tensor) -> None:
    if note.tensor is None or note.tensor.dtype != value.dtype or not value.is_contiguous():
        return
    note.tensor, note.name = None, name
    note.offset -= int(value.storage_offset())
