"""What each operator of a plan computes on the pieces of one rank: the mathematics of ``trimtab.runtime.decoder``.

Norms, softmaxes, rotations, the router and the loss are in fp32; what an operator gives has the type that its value is
declared with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.catalog import Activation, Network, Norm
from trimtab.plan.program import OperatorKind
from trimtab.runtime.linear import linear
from trimtab.runtime.lowering import experts, losses
from trimtab.runtime.lowering.attention import Attention, Where
from trimtab.runtime.lowering.chunked_head import rescaled
from trimtab.runtime.lowering.experts import Region
from trimtab.runtime.lowering.extents import Extent, Run
from trimtab.runtime.lowering.tape import in_type
from trimtab.runtime.rms_norm import rms_norm


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """Where the tensors of an operator stand.

    Args:
        network: Whose operator it is.
        attention: Of the network.
        inputs: Extents of inputs.
        parameters: The same of parameters.
        output: Extent of the output.
        dtype: Of the output.
        regions: Tokens that are routed together.
        window: Tokens that a query of this layer sees; None: all before it.
    """

    network: Network
    attention: Attention
    inputs: Sequence[Extent]
    parameters: Sequence[Extent]
    output: Extent
    dtype: torch.dtype
    regions: Sequence[Region]
    window: int | None


Compute = Callable[..., Tensor]
"""From inputs, then parameters, to the output."""


def computation(kind: OperatorKind, pieces: Pieces) -> Compute:
    """What an operator computes, as a function of its tensors."""
    found = _COMPUTE[kind]

    def compute(*tensors: Tensor) -> Tensor:
        return found(pieces, *tensors).to(pieces.dtype)

    return compute


def _embed(pieces: Pieces, tokens: Tensor, matrix: Tensor) -> Tensor:
    vocab = pieces.parameters[0].dims[0]
    if vocab.is_whole and vocab.length == pieces.network.vocab:
        return functional.embedding(tokens, matrix)
    places = tokens - vocab.start
    is_own = (places >= 0) & (places < vocab.real)
    return functional.embedding(places * is_own, matrix) * is_own[..., None]


def _add_positions(pieces: Pieces, x: Tensor, table: Tensor) -> Tensor:
    held = pieces.parameters[0]
    rows, columns = (
        _inside(run, wanted) for run, wanted in zip(held.dims, pieces.inputs[0].dims[1:], strict=True)
    )
    return x + table[rows, columns].to(x.dtype)


def _inside(held: Run, wanted: Run) -> slice:
    start = wanted.start - held.start
    return slice(start, start + wanted.length)


def _norm(pieces: Pieces, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    size, network = weight.shape[0], pieces.network
    weight, bias = weight.float(), None if bias is None else bias.float()
    vectors = torch.unflatten(x.float(), -1, (-1, size)) if x.shape[-1] != size else x.float()
    if network.norm is Norm.LAYERNORM:
        found = functional.layer_norm(vectors, (size,), weight, bias, eps=network.norm_eps)
    else:
        found = rms_norm(vectors, weight, network.norm_eps)
    return found.view(x.shape)


def _linear(pieces: Pieces, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    dtype = pieces.dtype
    return linear(x.to(dtype), in_type(weight, dtype), None if bias is None else bias.to(dtype))


def _expert_linear(pieces: Pieces, x_ETI: Tensor, weight_EOI: Tensor) -> Tensor:
    dtype = pieces.dtype
    return torch.bmm(x_ETI.to(dtype), in_type(weight_EOI, dtype).transpose(1, 2))


def _add_bias(pieces: Pieces, x: Tensor, bias: Tensor) -> Tensor:
    return x + bias[_inside(pieces.parameters[0].dims[0], pieces.inputs[0].dims[-1])].to(x.dtype)


def where_of(queries: Extent, keys: Extent, window: int | None) -> Where:
    """Positions and heads of queries and keys."""
    return Where(
        queries=queries.dims[1],
        keys=keys.dims[1],
        heads=queries.dims[2],
        kv_heads=keys.dims[2],
        window=window,
    )


def _attend(pieces: Pieces, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return pieces.attention(q, k, v, where_of(pieces.inputs[0], pieces.inputs[1], pieces.window))


def _activate(pieces: Pieces, up: Tensor, gate: Tensor | None = None) -> Tensor:
    if pieces.network.activation is Activation.GELU:
        return functional.gelu(up, approximate="tanh")
    assert gate is not None, "SwiGLU has a gate"
    return functional.silu(gate) * up


def _route(pieces: Pieces, logits: Tensor) -> Tensor:
    return experts.route(logits, pieces.regions, pieces.network.top_k)


def _dispatch(pieces: Pieces, tokens: Tensor, gates: Tensor) -> Tensor:
    # One device that routes the regions of many ranks has the slots of all of them, whatever its plan says.
    return experts.dispatch(tokens, gates, pieces.regions, pieces.output.dims[0], pieces.network.top_k)


def _combine(pieces: Pieces, outputs: Tensor, gates: Tensor) -> Tensor:
    return experts.combine(outputs, gates, pieces.regions, pieces.inputs[0].dims[0])


def _add(_: Pieces, x: Tensor, y: Tensor) -> Tensor:
    return x + y


def _vocab_max(pieces: Pieces, logits: Tensor) -> Tensor:
    return losses.highest(logits, pieces.inputs[0].dims[2])


def _vocab_sums(pieces: Pieces, logits: Tensor, targets: Tensor, highest: Tensor) -> Tensor:
    return losses.vocabulary_sums(logits, targets, highest, pieces.inputs[0].dims[2])


def _loss(_: Pieces, logits: Tensor, targets: Tensor, *reduced: Tensor) -> Tensor:
    """With maximum and sums over the vocabulary as they were reduced, or from logits that are whole."""
    return losses.loss_sum(targets, *reduced) if reduced else losses.whole_loss_sum(logits, targets)


def _loss_grad(pieces: Pieces, logits: Tensor, targets: Tensor, *reduced: Tensor) -> Tensor:
    if not reduced:
        return losses.whole_loss_gradient(logits, targets)
    highest, sums = reduced
    return losses.loss_gradient(logits, targets, highest, sums, pieces.inputs[0].dims[2])


def _rescale(_: Pieces, sums: Tensor, own: Tensor, highest: Tensor) -> Tensor:
    return rescaled(sums, own, highest)


def _loss_of_sums(_: Pieces, targets: Tensor, highest: Tensor, sums: Tensor) -> Tensor:
    return losses.loss_sum(targets, highest, sums)


_COMPUTE: Mapping[OperatorKind, Callable[..., Tensor]] = {
    OperatorKind.EMBED: _embed,
    OperatorKind.ADD_POSITIONS: _add_positions,
    OperatorKind.NORM: _norm,
    OperatorKind.LINEAR: _linear,
    OperatorKind.ADD_BIAS: _add_bias,
    OperatorKind.ATTENTION: _attend,
    OperatorKind.ACTIVATE: _activate,
    OperatorKind.ADD: _add,
    OperatorKind.ROUTE: _route,
    OperatorKind.DISPATCH: _dispatch,
    OperatorKind.EXPERT_LINEAR: _expert_linear,
    OperatorKind.COMBINE: _combine,
    OperatorKind.VOCAB_MAX: _vocab_max,
    OperatorKind.VOCAB_SUMS: _vocab_sums,
    OperatorKind.LOSS: _loss,
    OperatorKind.RESCALE: _rescale,
    OperatorKind.LOSS_OF_SUMS: _loss_of_sums,
    OperatorKind.LOSS_GRAD: _loss_grad,
}

UNTAPED = frozenset(
    {
        OperatorKind.ADD,
        OperatorKind.VOCAB_MAX,
        OperatorKind.VOCAB_SUMS,
        OperatorKind.LOSS,
        OperatorKind.RESCALE,
        OperatorKind.LOSS_OF_SUMS,
        OperatorKind.LOSS_GRAD,
    }
)
"""Operators whose gradient needs no graph: sums hand it on, the loss has it in closed form."""
