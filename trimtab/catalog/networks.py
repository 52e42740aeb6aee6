"""The network to train: its tensors by name, its parameters, its FLOPs per token."""

import math
from collections.abc import Iterable, Iterator, Mapping
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


class Bias(StrEnum):
    """Which matrices have a bias. Layer norms always have one; head, router and experts never."""

    NONE = "none"
    QKV = "qkv"  # queries, keys and values
    ALL = "all"  # attention and MLP


class TensorKind(StrEnum):
    """The column ``kind`` of a parameter."""

    EMBEDDING = "embedding"
    NORM = "norm"
    LINEAR = "linear"
    EXPERT = "expert"
    ROUTER = "router"
    HEAD = "head"


class FlopConvention(StrEnum):
    """Which attention scores count as work; a FLOP figure is printed with the name of its convention.

    ``CAUSAL`` counts the lower triangle with its diagonal, (sequence + 1) / 2 scores per token: what a
    causal kernel really computes, so that a utilisation from it never passes 1. ``FULL`` counts every
    score, ``sequence`` per token: the habit of most published MFU figures. Under a window both count only
    what a query sees: the triangle cut off at the window, and ``window`` scores per token.
    """

    CAUSAL = "causal"
    FULL = "full"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """One parameter of a network.

    Args:
        name: As in the state dict, ``layers.0.attention.wq.weight``.
        dims: The named dim of each axis, outermost first. ``heads`` and ``kv_heads`` stand for
            heads times head size, ``head`` for the size of one, ``routes`` for a router's outputs.
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
class RopeScaling:
    """Rotary frequencies slowed down for samples longer than those first trained on, as in Llama 3.1.

    Waves longer than ``original_context / low_factor`` tokens are slowed by ``factor``, those shorter than
    ``original_context / high_factor`` stay, and between the two the frequency goes over linearly.

    Source: Dubey et al. 2024 (Llama 3) and its released code, ``apply_scaling``.
    Raises: NetworkError if the factors cannot be.
    """

    factor: float
    low_factor: float
    high_factor: float
    original_context: int

    def __post_init__(self) -> None:
        """Refuse factors that would divide by zero or speed frequencies up."""
        if self.factor < 1 or self.original_context < 1 or not 0 < self.low_factor < self.high_factor:
            raise NetworkError(
                f"rope_scaling has factor {self.factor:g}, low_factor {self.low_factor:g}, high_factor "
                f"{self.high_factor:g} and original_context {self.original_context}; it takes a factor and "
                "a context of at least 1, and low_factor above 0 and below high_factor"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A decoder-only transformer, normalised before each block, that predicts the next token.

    With experts, the MLP of every layer is a router and ``experts`` MLPs, of which a token passes through
    ``top_k``.

    Raises: NetworkError if the fields do not fit together; the message names all that do not.
    """

    name: str
    """What reports call it."""
    layers: int
    """Number of transformer layers."""
    embed: int
    """Width of the residual stream, in elements."""
    heads: int
    """Query heads; each is ``head_size`` wide."""
    kv_heads: int
    """Key and value heads: ``heads`` is plain attention, 1 is multi-query, between is grouped-query."""
    mlp: int
    """Inner width of the MLP, or of one expert, in elements."""
    vocab: int
    """Number of tokens that the embedding knows."""
    context: int
    """Longest sequence, in tokens."""
    norm: Norm
    positions: Positions
    activation: Activation
    tied: bool
    """True if the head is the embedding's own matrix."""
    bias: Bias
    dropout: float
    """Probability that an element is dropped, from 0 to below 1."""
    rope_base: float = 10000.0
    """Base of the rotary frequencies; unused with learned positions."""
    norm_eps: float = 1e-5
    """Added to the variance (or mean square) before the root."""
    head_size: int = 0
    """Width of one attention head, in elements; 0, when given, stands for ``embed / heads``."""
    qk_norm: bool = False
    """True if each head's queries and keys are normalised, before they are rotated."""
    experts: int = 0
    """Experts of each layer; 0: one MLP, dense."""
    top_k: int = 0
    """Experts that a token passes through; 0 if there are none."""
    window: int = 0
    """Tokens that a query sees, its own included; 0: all before it."""
    full_layers: int = 0
    """The first layers that see everything although the others have a window."""
    rope_scaling: RopeScaling | None = None
    """How rotary frequencies are slowed down; None: not at all."""

    def __post_init__(self) -> None:
        """Refuse fields that do not fit together."""
        problems = list(_problems(self))
        if problems:
            raise NetworkError("\n".join([f"network {self.name!r} cannot be built", *problems]))
        if not self.head_size:
            object.__setattr__(self, "head_size", self.embed // self.heads)

    def size_of(self, dim: str) -> int:
        """Elements along a named dim of a parameter.

        Raises: KeyError if no parameter has such a dim.
        """
        return {
            "embed": self.embed,
            "heads": self.heads * self.head_size,
            "kv_heads": self.kv_heads * self.head_size,
            "head": self.head_size,
            "mlp": self.mlp,
            "experts": self.experts,
            "routes": self.experts,
            "vocab": self.vocab,
            "context": self.context,
        }[dim]

    def window_of(self, layer: int) -> int | None:
        """Tokens that a query of this layer sees, its own included; None: all before it."""
        return self.window if self.window and layer >= self.full_layers else None

    def tensors(self) -> tuple[Tensor, ...]:
        """Every parameter once, in canonical order: embedding, positions, layers, final norm, head."""
        # Layers are alike: what one holds is worked out once.
        of_a_layer = tuple(self._layer())
        return (
            *self._embeddings(),
            *(
                Tensor(
                    name=f"layers.{layer}.{tensor.name}",
                    dims=tensor.dims,
                    shape=tensor.shape,
                    layer=layer,
                    kind=tensor.kind,
                )
                for layer in range(self.layers)
                for tensor in of_a_layer
            ),
            *self._norm("final_norm"),
            *self._head(),
        )

    def num_parameters(self) -> int:
        """Elements of all parameters, every expert's among them; a tied head is not counted again."""
        outside = (*self._embeddings(), *self._norm("final_norm"), *self._head())
        return self.layers * _numel(self._layer()) + _numel(outside)

    def num_active_parameters(self) -> int:
        """Elements of the parameters that one token meets: all but those of the experts it is not sent to."""
        return self.num_parameters() - self.layers * self._num_idle_in_layer()

    def flops_per_token(self, sequence: int, causal: bool) -> int:
        """FLOPs of forward and backward pass per token, in sequences of ``sequence`` tokens.

        Matrix products only, 2 FLOPs per multiply-add; the backward pass is twice the forward pass. Of the
        experts those count that a token is sent to, and the router counts. The head counts, tied or not; the
        embedding's lookup, norms, activations, softmax and optimizer do not; nor does recompute, ever.
        ``causal`` chooses between the two of FlopConvention.

        >>> from trimtab.catalog import network
        >>> network("gpt-3m").flops_per_token(128, causal=True)
        20060160
        """
        return 3 * self.forward_flops_per_token(sequence, causal)

    def forward_flops_per_token(self, sequence: int, causal: bool) -> int:
        """FLOPs of the forward pass alone, counted as in ``flops_per_token``."""
        matrices = self.layers * 2 * self._num_multiplied_in_layer()
        attention = sum(self._attention_flops(layer, sequence, causal) for layer in range(self.layers))
        return matrices + attention + self.head_forward_flops()

    def layer_forward_flops(self, layer: int, sequence: int, causal: bool) -> int:
        """FLOPs of one layer's forward pass per token: its matrices, then scores and weighted values."""
        return 2 * self._num_multiplied_in_layer() + self._attention_flops(layer, sequence, causal)

    def head_forward_flops(self) -> int:
        """FLOPs of the head's matrix product per token."""
        return 2 * self.embed * self.vocab

    def flops_by_convention(self, sequence: int) -> Mapping[FlopConvention, int]:
        """``flops_per_token`` under each convention, to be printed with its name."""
        return {
            FlopConvention.CAUSAL: self.flops_per_token(sequence, causal=True),
            FlopConvention.FULL: self.flops_per_token(sequence, causal=False),
        }

    def _num_idle_in_layer(self) -> int:
        """Elements of the experts that a token is not sent to."""
        experts = (tensor for tensor in self._layer() if tensor.kind is TensorKind.EXPERT)
        return _numel(experts) // max(self.experts, 1) * (self.experts - self.top_k)

    def _num_multiplied_in_layer(self) -> int:
        """Elements of the matrices that a token is multiplied with."""
        matrices = (tensor for tensor in self._layer() if len(tensor.shape) > 1)
        return _numel(matrices) - self._num_idle_in_layer()

    def _attention_flops(self, layer: int, sequence: int, causal: bool) -> int:
        """FLOPs of a layer's scores and weighted values, forward, per token; under a window rounded down."""
        seen = min(sequence, self.window_of(layer) or sequence)
        # Twice the scores of a whole sample, so that the triangle stays a whole number: the first `seen`
        # queries see 1 to `seen` keys, all others `seen`.
        twice_scores = seen * (2 * sequence - seen + 1) if causal else 2 * sequence * seen
        return 2 * self.heads * self.head_size * twice_scores // sequence

    def _embeddings(self) -> Iterator[Tensor]:
        yield self._tensor("embedding.weight", ("vocab", "embed"), TensorKind.EMBEDDING)
        if self.positions is Positions.LEARNED:
            yield self._tensor("positions.weight", ("context", "embed"), TensorKind.EMBEDDING)

    def _layer(self) -> Iterator[Tensor]:
        """The tensors of a layer, without their layer and its part of the name."""
        is_qkv_biased, is_biased = self.bias is not Bias.NONE, self.bias is Bias.ALL
        yield from self._norm("attention_norm")
        yield from self._linear("attention.wq", ("heads", "embed"), is_qkv_biased)
        yield from self._linear("attention.wk", ("kv_heads", "embed"), is_qkv_biased)
        yield from self._linear("attention.wv", ("kv_heads", "embed"), is_qkv_biased)
        yield from self._linear("attention.wo", ("embed", "heads"), is_biased)
        if self.qk_norm:
            yield from self._norm("attention.q_norm", dim="head")
            yield from self._norm("attention.k_norm", dim="head")
        yield from self._norm("mlp_norm")
        yield from self._experts() if self.experts else self._mlp()

    def _mlp(self) -> Iterator[Tensor]:
        is_biased = self.bias is Bias.ALL
        yield from self._linear("mlp.up", ("mlp", "embed"), is_biased)
        if self.activation is Activation.SWIGLU:
            yield from self._linear("mlp.gate", ("mlp", "embed"), is_biased)
        yield from self._linear("mlp.down", ("embed", "mlp"), is_biased)

    def _experts(self) -> Iterator[Tensor]:
        yield self._tensor("router.weight", ("routes", "embed"), TensorKind.ROUTER)
        yield self._tensor("experts.up.weight", ("experts", "mlp", "embed"), TensorKind.EXPERT)
        if self.activation is Activation.SWIGLU:
            yield self._tensor("experts.gate.weight", ("experts", "mlp", "embed"), TensorKind.EXPERT)
        yield self._tensor("experts.down.weight", ("experts", "embed", "mlp"), TensorKind.EXPERT)

    def _head(self) -> Iterator[Tensor]:
        if not self.tied:
            yield self._tensor("head.weight", ("vocab", "embed"), TensorKind.HEAD)

    def _norm(self, name: str, dim: str = "embed") -> Iterator[Tensor]:
        yield self._tensor(f"{name}.weight", (dim,), TensorKind.NORM)
        if self.norm is Norm.LAYERNORM:
            yield self._tensor(f"{name}.bias", (dim,), TensorKind.NORM)

    def _linear(self, name: str, dims: tuple[str, str], is_biased: bool) -> Iterator[Tensor]:
        yield self._tensor(f"{name}.weight", dims, TensorKind.LINEAR)
        if is_biased:
            yield self._tensor(f"{name}.bias", dims[:1], TensorKind.LINEAR)

    def _tensor(self, name: str, dims: tuple[str, ...], kind: TensorKind) -> Tensor:
        shape = tuple(self.size_of(dim) for dim in dims)
        return Tensor(name=name, dims=dims, shape=shape, layer=None, kind=kind)


def _numel(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel for tensor in tensors)


_LEAST = {
    **dict.fromkeys(("layers", "embed", "heads", "kv_heads", "mlp", "vocab", "context"), 1),
    **dict.fromkeys(("head_size", "experts", "top_k", "window", "full_layers"), 0),
}
"""The least that each size may be."""


def _problems(network: Network) -> Iterator[str]:
    for field, least in _LEAST.items():
        value = getattr(network, field)
        if value < least:
            yield f"  {field} is {value}; it must be at least {least}"
    yield from _head_problems(network)
    yield from _expert_problems(network)
    yield from _window_problems(network)
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
    if not network.head_size and network.embed % network.heads:
        yield f"  heads is {network.heads}; it must divide embed, {network.embed}, or head_size be given"
        return
    head_size = network.head_size or network.embed // network.heads
    if network.positions is Positions.ROTARY and head_size % 2:
        yield f"  head_size is {head_size}; rotary positions turn pairs, so it must be even"
    if network.positions is not Positions.ROTARY and network.rope_scaling:
        yield f"  rope_scaling slows rotary frequencies; positions are {network.positions}"


def _expert_problems(network: Network) -> Iterator[str]:
    if network.top_k > network.experts:
        yield f"  top_k is {network.top_k}; a token cannot be sent to more experts than the {network.experts} there are"
    if network.experts and not network.top_k:
        yield f"  experts is {network.experts} and top_k is 0; say how many of them a token is sent to"


def _window_problems(network: Network) -> Iterator[str]:
    if not network.full_layers:
        return
    if not network.window:
        yield f"  full_layers is {network.full_layers} and window is 0; every layer sees everything"
    elif network.full_layers >= network.layers:
        yield f"  full_layers is {network.full_layers} of {network.layers}; no layer is left for the window"
