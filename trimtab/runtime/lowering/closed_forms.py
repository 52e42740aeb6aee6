"""Operators whose gradient is one call of torch's own kernels: they need no graph, and give the bits that autograd gives.

Each leaves a tape that keeps what is small and looks up by name what is large.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.catalog import Activation, Norm, Positions
from trimtab.plan.program import OperatorKind
from trimtab.runtime.compat import causal_attention, causal_attention_gradients
from trimtab.runtime.linear import fast_linear, fast_linear_gradients, takes_fast_product
from trimtab.runtime.lowering.computing import Pieces, where_of
from trimtab.runtime.lowering.tape import Lookup
from trimtab.runtime.rms_norm import own_norm, own_norm_gradients, takes_own_norm


class ClosedTape(Protocol):
    """What such an operator leaves; used as ``Tape`` is."""

    def gradients(self, gradient: Tensor, wanted: Sequence[int], lookup: Lookup) -> list[Tensor]:
        """Gradients of some of the operator's tensors, by place."""


ClosedForm = Callable[[Sequence[Tensor]], tuple[Tensor, ClosedTape]]
"""From an operator's tensors, inputs before parameters, to its output and its tape."""


def closed_form(
    kind: OperatorKind, pieces: Pieces, names: Sequence[str], output: str, tensors: Sequence[Tensor]
) -> ClosedForm | None:
    """The closed form of an operator; None if it has none.

    Args:
        kind: Of the operator.
        pieces: Where its tensors stand.
        names: Of its tensors, as a tape looks them up.
        output: The name of what it gives; empty if that cannot be looked up.
        tensors: That it is about to take; their types do not change from run to run.
    """
    made = _FORMS.get(kind)
    if made is None or pieces.dtype is not torch.float32 or not all(map(_is_plain, tensors)):
        return None
    return made(pieces, (*names, output), tensors)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype is torch.float32 and tensor.is_contiguous()


@dataclass(frozen=True, slots=True)
class _Linear:
    names: tuple[str, ...]

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ClosedTape]:
        return fast_linear(*tensors), self

    def gradients(self, gradient: Tensor, wanted: Sequence[int], lookup: Lookup) -> list[Tensor]:
        x, weight, *bias = self.names
        found = fast_linear_gradients(gradient, lookup(x), lookup(weight), is_biased=bool(bias))
        return _some(found, wanted)


@dataclass(frozen=True, slots=True)
class _LayerNorm:
    names: tuple[str, ...]
    eps: float

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ClosedTape]:
        x, weight, bias = tensors
        output, mean, scale = torch.native_layer_norm(x, weight.shape, weight, bias, self.eps)
        return output, _LayerNormTape(self.names, mean, scale)


@dataclass(frozen=True, slots=True)
class _LayerNormTape:
    names: tuple[str, ...]
    mean: Tensor
    scale: Tensor

    def gradients(self, gradient: Tensor, wanted: Sequence[int], lookup: Lookup) -> list[Tensor]:
        x, weight, bias = (lookup(name) for name in self.names)
        found = torch.ops.aten.native_layer_norm_backward(
            gradient, x, weight.shape, self.mean, self.scale, weight, bias, [True, True, True]
        )
        return _some(found, wanted)


@dataclass(frozen=True, slots=True)
class _RmsNorm:
    names: tuple[str, ...]
    eps: float

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ClosedTape]:
        x, weight = tensors
        output, scale = own_norm(_by_vector(x, weight), weight, self.eps)
        return output.view(x.shape), _RmsNormTape(self.names, scale)


@dataclass(frozen=True, slots=True)
class _RmsNormTape:
    names: tuple[str, ...]
    scale: Tensor

    def gradients(self, gradient: Tensor, wanted: Sequence[int], lookup: Lookup) -> list[Tensor]:
        x, weight = (lookup(name) for name in self.names)
        of_x, of_weight = own_norm_gradients(
            _by_vector(gradient, weight), _by_vector(x, weight), weight, self.scale
        )
        return _some([of_x.view(x.shape), of_weight], wanted)


def _by_vector(x: Tensor, weight: Tensor) -> Tensor:
    """Heads apart, where the norm is one of queries or keys."""
    return x if x.shape[-1] == weight.shape[0] else torch.unflatten(x, -1, (-1, weight.shape[0]))


@dataclass(frozen=True, slots=True)
class _Gelu:
    names: tuple[str, ...]

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ClosedTape]:
        (x,) = tensors
        return functional.gelu(x, approximate="tanh"), self

    def gradients(self, gradient: Tensor, wanted: Sequence[int], lookup: Lookup) -> list[Tensor]:
        (x,) = self.names
        return [torch.ops.aten.gelu_backward(gradient, lookup(x), approximate="tanh")]


@dataclass(frozen=True, slots=True)
class _Attention:
    names: tuple[str, ...]
    output: str
    head_size: int

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ClosedTape]:
        output_BHTE, logarithms = causal_attention(*(_heads_apart(x, self.head_size) for x in tensors))
        output = output_BHTE.transpose(1, 2).flatten(2)
        return output, _AttentionTape(self, None if self.output else output, logarithms)


@dataclass(frozen=True, slots=True)
class _AttentionTape:
    form: _Attention
    output: Tensor | None
    logarithms: Tensor

    def gradients(self, gradient: Tensor, wanted: Sequence[int], lookup: Lookup) -> list[Tensor]:
        form = self.form
        output = lookup(form.output) if self.output is None else self.output
        q, k, v, output, gradient = (
            _heads_apart(x, form.head_size) for x in (*map(lookup, form.names), output, gradient)
        )
        found = causal_attention_gradients(gradient, q, k, v, output, self.logarithms)
        return _some([x_BHTE.transpose(1, 2).flatten(2) for x_BHTE in found], wanted)


def _heads_apart(x: Tensor, head_size: int) -> Tensor:
    """[B, T, H E] -> [B, H, T, E]."""
    return torch.unflatten(x, -1, (-1, head_size)).transpose(1, 2)


def _some(gradients: Sequence[Tensor | None], wanted: Sequence[int]) -> list[Tensor]:
    found = [gradients[place] for place in wanted]
    return [gradient for gradient in found if gradient is not None]


_Names = tuple[str, ...]
"""Of inputs, of parameters, and of the output."""


def _linear(_: Pieces, names: _Names, tensors: Sequence[Tensor]) -> ClosedForm | None:
    return _Linear(names[:-1]) if takes_fast_product(tensors[0]) else None


def _norm(pieces: Pieces, names: _Names, tensors: Sequence[Tensor]) -> ClosedForm | None:
    x, weight, *bias = tensors
    if pieces.network.norm is not Norm.LAYERNORM:
        return _RmsNorm(names[:-1], pieces.network.norm_eps) if takes_own_norm(x) else None
    is_whole = x.shape[-1] == weight.shape[0]
    return _LayerNorm(names[:-1], pieces.network.norm_eps) if bias and is_whole else None


def _activation(pieces: Pieces, names: _Names, _: Sequence[Tensor]) -> ClosedForm | None:
    return _Gelu(names[:-1]) if pieces.network.activation is Activation.GELU else None


def _attention(pieces: Pieces, names: _Names, tensors: Sequence[Tensor]) -> ClosedForm | None:
    q, k, _ = tensors
    is_plain = pieces.network.positions is not Positions.ROTARY and q.shape == k.shape
    where = where_of(pieces.inputs[0], pieces.inputs[1], pieces.window)
    if not is_plain or not where.is_whole or q.device.type != "cpu":
        return None
    return _Attention(names[:-1], names[-1], pieces.network.head_size)


_FORMS: Mapping[OperatorKind, Callable[[Pieces, _Names, Sequence[Tensor]], ClosedForm | None]] = {
    OperatorKind.LINEAR: _linear,
    OperatorKind.NORM: _norm,
    OperatorKind.ACTIVATE: _activation,
    OperatorKind.ATTENTION: _attention,
}
