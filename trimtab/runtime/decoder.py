"""What does a catalog network compute?

Shapes: B samples, T tokens, D embed, H query heads, K key and value heads, E head size, F mlp, V vocab.

Attention is causal over the whole sample, or over the last tokens of it in layers with a window, across the
borders of documents packed into it. There is no
dropout on attention probabilities: it would rule out the fused kernels; dropout acts on the embedding and
on what attention and MLP add to the residual stream.
"""

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trimtab.catalog import Activation, Bias, Network, Norm, Positions, RopeScaling
from trimtab.runtime.compat import compile_here
from trimtab.runtime.linear import Linear, linear
from trimtab.runtime.random_keys import EMBEDDING_LAYER, KeyedDropout, KeyedRandom
from trimtab.runtime.rms_norm import RmsNorm
from trimtab.terms import InputError

IGNORED_TARGET = -100
"""A target that counts in no loss: padding, or a token without a successor."""

_INITIAL_STD = 0.02
"""GPT-2's standard deviation of initial weights (Radford et al. 2019, its released code)."""


class GivesLogits(Protocol):
    """A model from tokens [B, T] to logits [B, T, V]."""

    def __call__(self, tokens_BT: Tensor, /) -> Tensor:
        """Logits of the next token at each position."""


def loss_sum(model: GivesLogits, tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, int]:
    """The sum of token losses in nats (fp32, a scalar with a graph) and the number of targets in it."""
    return token_loss_sum(model(tokens_BT), targets_BT)


def token_loss_sum(logits_BTV: Tensor, targets_BT: Tensor) -> tuple[Tensor, int]:
    """As ``loss_sum``, from logits. Without a single target the loss is 0 and so are its gradients."""
    # One conversion of the logits: under autocast they come in bf16, whose sums would lose the loss.
    loss = functional.cross_entropy(
        logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
    )
    return loss, int((targets_BT != IGNORED_TARGET).sum())


def initial_tensor(network: Network, name: str, shape: tuple[int, ...], *, seed: int) -> Tensor:
    """The initial value of one parameter, on the CPU, in fp32.

    GPT-2's: weights normal with deviation 0.02, those that write into the residual stream divided by
    sqrt(2 layers), norms one, biases zero. A tensor's numbers depend on seed and name alone, so a rank can
    draw those that it holds.
    """
    if name.endswith(".bias"):
        return torch.zeros(shape, device="cpu")
    if "norm." in name:
        return torch.ones(shape, device="cpu")
    writes_residual = name.endswith(("attention.wo.weight", "mlp.down.weight"))
    std = _INITIAL_STD / math.sqrt(2 * network.layers) if writes_residual else _INITIAL_STD
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.empty(shape, device="cpu").normal_(0.0, std, generator=generator)


def refuse_unbuildable(network: Network) -> None:
    """Refuse a network that is computed by its plan alone.

    Raises: InputError that names what it has and what would do.
    """
    if network.experts:
        raise InputError(
            f"{network.name} has {network.experts} experts in each layer: a plan computes them, and no module does. "
            "Train it by a job, or set model.experts: 0 and model.top_k: 0 for a dense one."
        )


class Decoder(nn.Module):
    """A network of the catalog; the names and shapes of its parameters are ``network.tensors()``.

    Parameters hold no values until ``initialize`` or ``fill``, so it may be built on ``meta``.
    A tied head is the embedding's own parameter; a backward pass adds both of its contributions first and
    then adds their sum to ``grad``, unless ``head_gradient`` keeps that of the head.

    Args:
        network: What to build.
        keyed: Where dropout masks come from.

    Attributes:
        head_gradient: What a tied head adds to its matrix, to be added by whoever put this here; None by default.

    Raises: InputError for a network with experts, which it cannot compute.
    """

    def __init__(self, network: Network, keyed: KeyedRandom) -> None:
        super().__init__()
        refuse_unbuildable(network)
        self.network = network
        self.embedding = _Embedding(network.vocab, network.embed)
        if network.positions is Positions.LEARNED:
            self.positions = _Embedding(network.context, network.embed)
        self.dropout = KeyedDropout(network.dropout, EMBEDDING_LAYER, keyed)
        self.layers = nn.ModuleList(Layer(network, layer, keyed) for layer in range(network.layers))
        self.final_norm = _norm(network, network.embed)
        if not network.tied:
            self.head = Linear(network.embed, network.vocab, bias=False)
        self._rotations: dict[torch.device, Tensor] = {}
        self.head_gradient: GradientSum | None = None

    def compile_blocks(self) -> None:
        """Let torch's compiler make kernels for each layer, in its first forward pass; layers that are alike share them.

        Names and values of parameters stay. Bits are others than without; they are the same in every process.
        """
        compile_here()
        for layer in self.layers:
            layer.compile()

    def initialize(self, seed: int) -> None:
        """Fill every parameter with ``initial_tensor``."""
        shapes = {name: tuple(parameter.shape) for name, parameter in self.named_parameters()}
        self.fill(lambda name: initial_tensor(self.network, name, shapes[name], seed=seed))

    def fill(self, value_of: Callable[[str], Tensor]) -> None:
        """Fill every parameter with a value of its name; one value exists at a time."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(value_of(name))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits of the next token at each position; T is at most ``network.context``."""
        num_tokens = tokens_BT.shape[1]
        assert num_tokens <= self.network.context, (num_tokens, self.network.context)
        x_BTD = self.embedding(tokens_BT)
        rotation = None
        if self.network.positions is Positions.LEARNED:
            x_BTD = x_BTD + self.positions.weight[:num_tokens]
        else:
            rotation = self._rotation(tokens_BT.device)[:, :num_tokens]
        x_BTD = self.dropout(x_BTD)
        mask_TT = window_mask(num_tokens, self.network.window, tokens_BT.device)
        for number, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, rotation, mask_TT if self.network.window_of(number) else None)
        head: nn.Linear | nn.Embedding = self.embedding if self.network.tied else self.head
        matrix: Tensor = head.weight
        if self.network.tied and self.head_gradient is not None:
            matrix = _SummedApart.apply(matrix, self.head_gradient)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return linear(self.final_norm(x_BTD), matrix)

    def _rotation(self, device: torch.device) -> Tensor:
        # Always for the whole context: an entry must not depend on the length of the first sample seen.
        if device not in self._rotations:
            self._rotations[device] = rotation_table(self.network).to(device)
        return self._rotations[device]


class GradientSum:
    """What one use of a parameter adds to its gradient, over some backward passes, apart from what its other uses add."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None

    def add(self, gradient: Tensor) -> None:
        """One backward pass more."""
        self._sum = gradient.clone() if self._sum is None else self._sum.add_(gradient)

    def add_to(self, parameter: Tensor) -> None:
        """Add it to the gradient of the parameter, which its other uses have made."""
        if self._sum is not None:
            assert parameter.grad is not None, "the other uses have added theirs"
            parameter.grad.add_(self._sum)


class _SummedApart(torch.autograd.Function):
    """A parameter whose gradient goes to a sum of its own."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, apart: GradientSum) -> Tensor:
        ctx.apart = apart
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        ctx.apart.add(gradient)
        return None, None


class Layer(nn.Module):
    """One transformer layer, normalised before attention and before the MLP."""

    def __init__(self, network: Network, layer: int, keyed: KeyedRandom) -> None:
        super().__init__()
        self.attention_norm = _norm(network, network.embed)
        self.attention = Attention(network)
        self.mlp_norm = _norm(network, network.embed)
        self.mlp = GeluMlp(network) if network.activation is Activation.GELU else SwigluMlp(network)
        self.dropout = KeyedDropout(network.dropout, layer, keyed)

    def forward(self, x_BTD: Tensor, rotation: Tensor | None, mask_TT: Tensor | None = None) -> Tensor:
        """The residual stream after this layer.

        Args:
            x_BTD: Before it.
            rotation: Of positions, where they are rotary.
            mask_TT: From ``window_mask``, if the layer has a window; None: attention is causal.
        """
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD), rotation, mask_TT))
        y_BTD: Tensor = x_BTD + self.dropout(self.mlp(self.mlp_norm(x_BTD)))
        return y_BTD


class Attention(nn.Module):
    """Causal attention; with fewer key and value heads than query heads, neighbours share one."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._head_size = network.head_size
        size, kv_size = network.size_of("heads"), network.size_of("kv_heads")
        is_qkv_biased = network.bias is not Bias.NONE
        self.wq = Linear(network.embed, size, bias=is_qkv_biased)
        self.wk = Linear(network.embed, kv_size, bias=is_qkv_biased)
        self.wv = Linear(network.embed, kv_size, bias=is_qkv_biased)
        self.wo = Linear(size, network.embed, bias=network.bias is Bias.ALL)
        if network.qk_norm:
            self.q_norm = _norm(network, network.head_size)
            self.k_norm = _norm(network, network.head_size)
        self._has_qk_norm = network.qk_norm

    def forward(self, x_BTD: Tensor, rotation: Tensor | None, mask_TT: Tensor | None = None) -> Tensor:
        """What attention adds to the residual stream; arguments as those of the layer."""
        q_BTHE = self.wq(x_BTD).unflatten(-1, (-1, self._head_size))
        k_BTKE = self.wk(x_BTD).unflatten(-1, (-1, self._head_size))
        v_BTKE = self.wv(x_BTD).unflatten(-1, (-1, self._head_size))
        if self._has_qk_norm:
            # In fp32, as the norms of the residual stream: under autocast queries and keys come in bf16.
            q_BTHE = self.q_norm(q_BTHE.float()).type_as(q_BTHE)
            k_BTKE = self.k_norm(k_BTKE.float()).type_as(k_BTKE)
        if rotation is not None:
            q_BTHE, k_BTKE = rotate(q_BTHE, rotation), rotate(k_BTKE, rotation)
        y_BHTE = _attend(q_BTHE.transpose(1, 2), k_BTKE.transpose(1, 2), v_BTKE.transpose(1, 2), mask_TT)
        y: Tensor = self.wo(y_BHTE.transpose(1, 2).flatten(2))
        return y


def window_mask(num_tokens: int, window: int, device: torch.device) -> Tensor | None:
    """[T, T]: whether a query, the row, sees a key; None where a window hides nothing that is not hidden anyway.

    >>> window_mask(3, 2, torch.device("cpu")).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    if not 0 < window < num_tokens:
        return None
    all_TT = torch.ones((num_tokens, num_tokens), dtype=torch.bool, device=device)
    return all_TT.tril().triu(1 - window)


def _attend(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, mask_TT: Tensor | None) -> Tensor:
    """Attention, causal without a mask, scaled by 1 / sqrt(E)."""
    attend = partial(
        functional.scaled_dot_product_attention,
        attn_mask=mask_TT,
        is_causal=mask_TT is None,
        enable_gqa=q_BHTE.shape[1] != k_BKTE.shape[1],
    )
    if not _is_faster_in_fp32(q_BHTE):
        return attend(q_BHTE, k_BKTE, v_BKTE)
    with torch.autocast("cpu", enabled=False):
        return attend(q_BHTE.float(), k_BKTE.float(), v_BKTE.float())


def _is_faster_in_fp32(q_BHTE: Tensor) -> bool:
    """Whether bf16 attention had better run in fp32: on a CPU, in short samples.

    Forward and backward with torch 2.13 on one core of an AMD EPYC (family 26), fp32 against bf16: 16 and
    28 ms at B 8, T 128, H 8, E 32; 107 and 199 ms at B 4, T 512, H 8, E 64; 300 and 232 ms at B 1, T 1024,
    H 12, E 64.
    """
    return q_BHTE.device.type == "cpu" and q_BHTE.dtype is torch.bfloat16 and q_BHTE.shape[2] <= 512


class GeluMlp(nn.Module):
    """Up, GELU in its tanh form, down."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.up = Linear(network.embed, network.mlp, bias=network.bias is Bias.ALL)
        self.down = Linear(network.mlp, network.embed, bias=network.bias is Bias.ALL)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """What the MLP adds to the residual stream."""
        y_BTD: Tensor = self.down(functional.gelu(self.up(x_BTD), approximate="tanh"))
        return y_BTD


class SwigluMlp(nn.Module):
    """Up times SiLU of gate, down."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.up = Linear(network.embed, network.mlp, bias=network.bias is Bias.ALL)
        self.gate = Linear(network.embed, network.mlp, bias=network.bias is Bias.ALL)
        self.down = Linear(network.mlp, network.embed, bias=network.bias is Bias.ALL)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """What the MLP adds to the residual stream."""
        y_BTD: Tensor = self.down(functional.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return y_BTD


def rotation_table(network: Network) -> Tensor:
    """Cosines and sines [2, context, 1, E / 2] of rotary positions, fp32 (Su et al. 2021)."""
    pairs = torch.arange(0, network.head_size, 2, dtype=torch.float32)
    frequencies = network.rope_base ** (-pairs / network.head_size)
    if network.rope_scaling is not None:
        frequencies = scaled_frequencies(frequencies, network.rope_scaling)
    angles = torch.outer(torch.arange(network.context, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin())).unsqueeze(2)


def scaled_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Frequencies [E / 2] of rotary positions slowed down for longer samples; see RopeScaling."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_factor) / (scaling.high_factor - scaling.low_factor)
    return torch.lerp(frequencies / scaling.factor, frequencies, kept.clamp(0.0, 1.0))


def rotate(x_BTHE: Tensor, rotation: Tensor) -> Tensor:
    """Turn the pairs (i, i + E / 2) of each head by its position's angles, in fp32; the type stays."""
    cos, sin = rotation
    first, second = x_BTHE.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.type_as(x_BTHE)


def _norm(network: Network, size: int) -> nn.Module:
    norm = nn.LayerNorm if network.norm is Norm.LAYERNORM else RmsNorm
    return norm(size, eps=network.norm_eps)


class _Embedding(nn.Embedding):
    """Without torch's own initial values, as ``Linear``."""

    def reset_parameters(self) -> None:
        pass
