"""A decoder cut over ranks along heads, mlp and vocabulary: by DTensor, and by hand.

The network has LayerNorm, learned positions, biases, GELU and a tied head. Weights come from Trimtab's own decoder.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from trimtab.catalog import Network
from trimtab.runtime.decoder import Decoder
from trimtab.runtime.linear import linear


def attend(q: Tensor, k: Tensor, v: Tensor, head_size: int) -> Tensor:
    """Causal attention [B, T, heads E] of as many heads as there are."""
    q, k, v = (x.unflatten(-1, (-1, head_size)).transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


# By DTensor.


class DTensorDecoder(nn.Module):
    """Torch's own layers, cut by ``parallelize_module``; logits stay cut along the vocabulary."""

    def __init__(self, network: Network, filled: Decoder, mesh: DeviceMesh) -> None:
        super().__init__()
        self.embedding = nn.Embedding(network.vocab, network.embed)
        self.positions = nn.Embedding(network.context, network.embed)
        self.layers = nn.ModuleList(_Layer(network) for _ in range(network.layers))
        self.final_norm = nn.LayerNorm(network.embed, eps=network.norm_eps)
        self.load_state_dict(filled.state_dict())
        self.head = nn.Linear(network.embed, network.vocab, bias=False)
        by_module = {
            "embedding": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(self, mesh, by_module)
        self.head.weight = self.embedding.weight
        for layer in self.layers:
            columns, rows = ("wq", "wk", "wv", "up"), ("wo", "down")
            parallelize_module(
                layer,
                mesh,
                {f"attention.{name}": ColwiseParallel() for name in columns[:3]}
                | {f"mlp.{name}": ColwiseParallel() for name in columns[3:]}
                | {f"attention.{name}": RowwiseParallel() for name in rows[:1]}
                | {f"mlp.{name}": RowwiseParallel() for name in rows[1:]},
            )

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


class _Layer(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(network.embed, eps=network.norm_eps)
        self.attention = _Attention(network.embed, network.head_size)
        self.mlp_norm = nn.LayerNorm(network.embed, eps=network.norm_eps)
        self.mlp = _Mlp(network.embed, network.mlp)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class _Attention(nn.Module):
    def __init__(self, embed: int, head_size: int) -> None:
        super().__init__()
        self._head_size = head_size
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(embed, embed) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.wo(attend(self.wq(x), self.wk(x), self.wv(x), self._head_size))
        return y


class _Mlp(nn.Module):
    def __init__(self, embed: int, mlp: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(embed, mlp), nn.Linear(mlp, embed)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(functional.gelu(self.up(x), approximate="tanh"))
        return y


# By hand.


class HandCutDecoder(nn.Module):
    """Each rank has its heads, its part of the mlp and its rows of the tied matrix; logits are its columns."""

    def __init__(self, network: Network, filled: Decoder, rank: int, ranks: int) -> None:
        super().__init__()
        self._head_size, self._rank, self._num_layers = network.head_size, rank, network.layers
        self._norm_eps = network.norm_eps
        self._cut: set[str] = set()
        self.weights = nn.ParameterDict()
        for name, whole in filled.state_dict().items():
            dim = _cut_dim(name)
            piece = whole if dim is None else whole.chunk(ranks, dim)[rank].clone()
            self.weights[name.replace(".", "/")] = nn.Parameter(piece)
            if dim is not None:
                self._cut.add(name.replace(".", "/"))

    def cut_and_whole(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Parameters of which the rank has a piece, and those that every rank has."""
        cut = [weight for name, weight in self.weights.items() if name in self._cut]
        return cut, [weight for name, weight in self.weights.items() if name not in self._cut]

    def forward(self, tokens: Tensor) -> Tensor:
        """The rank's columns of the logits."""
        x = self._embed(tokens) + self.weights["positions/weight"][: tokens.shape[1]]
        for layer in range(self._num_layers):
            x = self._layer(f"layers/{layer}/", x)
        return linear(_Copied.apply(self._norm("final_norm", x)), self.weights["embedding/weight"])

    def _embed(self, tokens: Tensor) -> Tensor:
        matrix = self.weights["embedding/weight"]
        places = tokens - self._rank * matrix.shape[0]
        is_other = (places < 0) | (places >= matrix.shape[0])
        found = functional.embedding(places.masked_fill(is_other, 0), matrix)
        return _Summed.apply(found.masked_fill(is_other[..., None], 0.0))

    def _layer(self, layer: str, x: Tensor) -> Tensor:
        y = _Copied.apply(self._norm(f"{layer}attention_norm", x))
        q, k, v = (self._linear(f"{layer}attention/{name}", y) for name in ("wq", "wk", "wv"))
        x = x + self._row_linear(f"{layer}attention/wo", attend(q, k, v, self._head_size))
        y = _Copied.apply(self._norm(f"{layer}mlp_norm", x))
        hidden = functional.gelu(self._linear(f"{layer}mlp/up", y), approximate="tanh")
        return x + self._row_linear(f"{layer}mlp/down", hidden)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}/weight"], self.weights[f"{name}/bias"]
        return functional.layer_norm(x, weight.shape, weight, bias, eps=self._norm_eps)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.weights[f"{name}/weight"], self.weights[f"{name}/bias"])

    def _row_linear(self, name: str, x: Tensor) -> Tensor:
        return _Summed.apply(linear(x, self.weights[f"{name}/weight"])) + self.weights[f"{name}/bias"]


def _cut_dim(name: str) -> int | None:
    if any(part in name for part in ("wq.", "wk.", "wv.", "mlp.up.")) or name == "embedding.weight":
        return 0
    return 1 if name.endswith(("wo.weight", "down.weight")) else None


class HandCutLoss:
    """The sum of token losses from logits cut along the vocabulary."""

    def __init__(self, rank: int, ranks: int, vocab: int) -> None:
        self._start, self._length = rank * (vocab // ranks), vocab // ranks

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """From the rank's columns."""
        loss: Tensor = _CutCrossEntropy.apply(logits, targets - self._start, self._length)
        return loss


class _Copied(torch.autograd.Function):
    """The same on all ranks; its gradient is summed."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class _Summed(torch.autograd.Function):
    """Summed over ranks; its gradient is the same on all."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        total = x.detach()  # In place: what makes x does not save it.
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        return gradient


class _CutCrossEntropy(torch.autograd.Function):
    """As Megatron-LM's: three sums over ranks, of one number a token each."""

    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, places: Tensor, length: int) -> Tensor:
        highest = logits.amax(-1)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        is_other = (places < 0) | (places >= length)
        places = places.masked_fill(is_other, 0)[..., None]
        shifted = logits - highest[..., None]
        aimed = shifted.gather(-1, places)[..., 0].masked_fill(is_other, 0.0)
        weights = shifted.exp_()
        sums = torch.stack((weights.sum(-1), aimed))
        dist.all_reduce(sums)
        weights /= sums[0][..., None]
        ctx.save_for_backward(weights, places, is_other)
        return (sums[0].log() - sums[1]).sum()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        weights, places, is_other = ctx.saved_tensors
        weights.scatter_add_(-1, places, -(~is_other)[..., None].to(weights.dtype))
        return weights.mul_(gradient), None, None
