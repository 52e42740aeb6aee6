"""The network to train: its tensors by name, its parameters, its FLOPs per token."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from trimtab.catalog.errors import NetworkError


class Norm(StrEnum):
    """How a residual stream is normalised before attention, MLP and head."""

    LAYERNORM = "layernorm"  # weight and bias
    RMSNORM = "rmsnorm"  # weight only


class Positions(StrEnum):
    """How attention knows where a token stands."""

    LEARNED = "learned"  # one vector per position, added to the embedding
    ROTARY = "rotary"  # queries and keys are rotated; no parameters


class Activation(StrEnum):
    """What stands between the matrices of an MLP."""

    GELU = "gelu"  # up, GELU, down
    SWIGLU = "swiglu"  # up times SiLU of gate, down


class TensorKind(StrEnum):
    """The column ``kind`` of a parameter."""

    EMBEDDING = "embedding"
    NORM = "norm"
    LINEAR = "linear"
    HEAD = "head"


class FlopConvention(StrEnum):
    """Which attention scores count as work; a FLOP figure is printed with the name of its convention.

    ``CAUSAL`` counts the lower triangle with its diagonal, (sequence + 1) / 2 scores per token: what a
    causal kernel really computes, so that a utilisation from it never passes 1. ``FULL`` counts every
    score, ``sequence`` per token: the habit of most published MFU figures.
    """

    CAUSAL = "causal"
    FULL = "full"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """One parameter of a network.

    Args:
        name: As in the state dict, ``layers.0.attention.wq.weight``.
        dims: The named dim of each axis, outermost first. ``heads`` and ``kv_heads`` stand for
            heads times head size.
        shape: Elements along each dim.
        layer: Counted from 0; None for embedding, positions, final norm and head.
        kind: What the tensor is part of; a bias has the kind of its weight.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    layer: int | None
    kind: TensorKind

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A decoder-only transformer, normalised before each block, that predicts the next token.

    Raises: NetworkError if the fields do not fit together; the message names all that do not.
    """

    name: str
    """What reports call it."""
    layers: int
    """Number of transformer layers."""
    embed: int
    """Width of the residual stream, in elements."""
    heads: int
    """Query heads; each is ``embed / heads`` wide."""
    kv_heads: int
    """Key and value heads: ``heads`` is plain attention, 1 is multi-query, between is grouped-query."""
    mlp: int
    """Inner width of the MLP, in elements."""
    vocab: int
    """Number of tokens that the embedding knows."""
    context: int
    """Longest sequence, in tokens."""
    norm: Norm
    positions: Positions
    activation: Activation
    tied: bool
    """True if the head is the embedding's own matrix."""
    bias: bool
    """True if attention and MLP matrices have a bias; layer norms always have one, the head never."""
    dropout: float
    """Probability that an element is dropped, from 0 to below 1."""
    rope_base: float = 10000.0
    """Base of the rotary frequencies; unused with learned positions."""
    norm_eps: float = 1e-5
    """Added to the variance (or mean square) before the root."""

    def __post_init__(self) -> None:
        """Refuse fields that do not fit together."""
        problems = list(_problems(self))
        if problems:
            raise NetworkError("\n".join([f"network {self.name!r} cannot be built", *problems]))

    @property
    def head_size(self) -> int:
        """Width of one attention head, in elements."""
        return self.embed // self.heads

    def size_of(self, dim: str) -> int:
        """Elements along a named dim of a parameter.

        Raises: KeyError if no parameter has such a dim.
        """
        return {
            "embed": self.embed,
            "heads": self.heads * self.head_size,
            "kv_heads": self.kv_heads * self.head_size,
            "mlp": self.mlp,
            "vocab": self.vocab,
            "context": self.context,
        }[dim]

    def tensors(self) -> tuple[Tensor, ...]:
        """Every parameter once, in canonical order: embedding, positions, layers, final norm, head."""
        return (
            *self._embeddings(),
            *(tensor for layer in range(self.layers) for tensor in self._layer(layer)),
            *self._norm("final_norm", None),
            *self._head(),
        )

    def num_parameters(self) -> int:
        """Elements of all parameters; a tied head is not counted again."""
        return sum(tensor.numel for tensor in self.tensors())

    def flops_per_token(self, sequence: int, causal: bool) -> int:
        """FLOPs of forward and backward pass per token, in sequences of ``sequence`` tokens.

        Matrix products only, 2 FLOPs per multiply-add; the backward pass is twice the forward pass. The
        head counts, tied or not; the embedding's lookup, norms, activations, softmax and optimizer do
        not; nor does recompute, ever. ``causal`` chooses between the two of FlopConvention.

        >>> from trimtab.catalog import network
        >>> network("gpt-3m").flops_per_token(128, causal=True)
        20060160
        """
        return 3 * self.forward_flops_per_token(sequence, causal)

    def forward_flops_per_token(self, sequence: int, causal: bool) -> int:
        """FLOPs of the forward pass alone, counted as in ``flops_per_token``."""
        layers = sum(self.layer_forward_flops(layer, sequence, causal) for layer in range(self.layers))
        return layers + self.head_forward_flops()

    def layer_forward_flops(self, layer: int, sequence: int, causal: bool) -> int:
        """FLOPs of one layer's forward pass per token: its matrices, then scores and weighted values."""
        matrices = sum(tensor.numel for tensor in self._layer(layer) if len(tensor.shape) == 2)
        # Twice the mean number of scores per token, so that the triangle stays a whole number.
        twice_scores = sequence + 1 if causal else 2 * sequence
        return 2 * matrices + 2 * self.heads * self.head_size * twice_scores

    def head_forward_flops(self) -> int:
        """FLOPs of the head's matrix product per token."""
        return 2 * self.embed * self.vocab

    def flops_by_convention(self, sequence: int) -> Mapping[FlopConvention, int]:
        """``flops_per_token`` under each convention, to be printed with its name."""
        return {
            FlopConvention.CAUSAL: self.flops_per_token(sequence, causal=True),
            FlopConvention.FULL: self.flops_per_token(sequence, causal=False),
        }

    def _embeddings(self) -> Iterator[Tensor]:
        yield self._tensor("embedding.weight", ("vocab", "embed"), None, TensorKind.EMBEDDING)
        if self.positions is Positions.LEARNED:
            yield self._tensor("positions.weight", ("context", "embed"), None, TensorKind.EMBEDDING)

    def _layer(self, layer: int) -> Iterator[Tensor]:
        prefix = f"layers.{layer}"
        yield from self._norm(f"{prefix}.attention_norm", layer)
        yield from self._linear(f"{prefix}.attention.wq", ("heads", "embed"), layer)
        yield from self._linear(f"{prefix}.attention.wk", ("kv_heads", "embed"), layer)
        yield from self._linear(f"{prefix}.attention.wv", ("kv_heads", "embed"), layer)
        yield from self._linear(f"{prefix}.attention.wo", ("embed", "heads"), layer)
        yield from self._norm(f"{prefix}.mlp_norm", layer)
        yield from self._linear(f"{prefix}.mlp.up", ("mlp", "embed"), layer)
        if self.activation is Activation.SWIGLU:
            yield from self._linear(f"{prefix}.mlp.gate", ("mlp", "embed"), layer)
        yield from self._linear(f"{prefix}.mlp.down", ("embed", "mlp"), layer)

    def _head(self) -> Iterator[Tensor]:
        if not self.tied:
            yield self._tensor("head.weight", ("vocab", "embed"), None, TensorKind.HEAD)

    def _norm(self, name: str, layer: int | None) -> Iterator[Tensor]:
        yield self._tensor(f"{name}.weight", ("embed",), layer, TensorKind.NORM)
        if self.norm is Norm.LAYERNORM:
            yield self._tensor(f"{name}.bias", ("embed",), layer, TensorKind.NORM)

    def _linear(self, name: str, dims: tuple[str, str], layer: int) -> Iterator[Tensor]:
        yield self._tensor(f"{name}.weight", dims, layer, TensorKind.LINEAR)
        if self.bias:
            yield self._tensor(f"{name}.bias", dims[:1], layer, TensorKind.LINEAR)

    def _tensor(self, name: str, dims: tuple[str, ...], layer: int | None, kind: TensorKind) -> Tensor:
        shape = tuple(self.size_of(dim) for dim in dims)
        return Tensor(name=name, dims=dims, shape=shape, layer=layer, kind=kind)


def _problems(network: Network) -> Iterator[str]:
    for field in ("layers", "embed", "heads", "kv_heads", "mlp", "vocab", "context"):
        value = getattr(network, field)
        if value < 1:
            yield f"  {field} is {value}; it must be at least 1"
    yield from _head_problems(network)
    if not 0 <= network.dropout < 1:
        yield f"  dropout is {network.dropout}; it must be from 0 to below 1"
    for field in ("rope_base", "norm_eps"):
        value = getattr(network, field)
        if not value > 0:
            yield f"  {field} is {value}; it must be above 0"


def _head_problems(network: Network) -> Iterator[str]:
    if min(network.embed, network.heads, network.kv_heads) < 1:
        return
    if network.heads % network.kv_heads:
        yield f"  kv_heads is {network.kv_heads}; it must divide heads, {network.heads}"
    if network.embed % network.heads:
        yield f"  heads is {network.heads}; it must divide embed, {network.embed}"
    elif network.positions is Positions.ROTARY and network.head_size % 2:
        yield (
            f"  head size (embed / heads) is {network.head_size}; rotary positions turn pairs, so it must be even"
        )
