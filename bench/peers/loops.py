"""Training loops in plain torch, one for each way to lay a network over ranks: what the lowering of plans is measured by.

Each trains the network of ``trimtab.runtime.decoder`` with fused AdamW and clipping, on the loss per token of the whole
batch. A loop is built on every rank of a gloo group, on one thread, and takes one step at a time.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from tensor_parallel import DTensorDecoder, HandCutDecoder, HandCutLoss
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trimtab.catalog import Network
from trimtab.runtime.decoder import Decoder
from trimtab.runtime.linear import linear
from trimtab.runtime.random_keys import KeyedRandom

LR, BETAS, DECAY, CLIP = 1e-3, (0.9, 0.95), 0.1, 1.0


class Loop(Protocol):
    """One rank of a training."""

    def step(self, tokens: Tensor, targets: Tensor) -> float | None:
        """One step on the whole batch [B, T]; its loss per token, None on ranks that do not know it."""


class DataParallel:
    """Replicas on rows of the batch, each in one microbatch.

    Args:
        model: Whose backward pass takes the mean of gradients over ranks.
    """

    def __init__(self, model: nn.Module, rank: int, ranks: int) -> None:
        self._model, self._rank, self._ranks = model, rank, ranks
        self._optimizer = adamw(model.named_parameters())

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """See Loop."""
        own, wanted = (whole.chunk(self._ranks)[self._rank] for whole in (tokens, targets))
        loss = token_loss(self._model(own), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        total = loss.detach()
        dist.all_reduce(total)
        return float(total) / self._ranks


class TensorParallel:
    """Heads, mlp and vocabulary cut over the ranks by DTensor; every rank computes on the whole batch."""

    def __init__(self, network: Network, seed: int, ranks: int) -> None:
        mesh = dist.init_device_mesh("cpu", (ranks,))
        self._model = DTensorDecoder(network, filled(network, seed), mesh)
        self._optimizer = adamw(self._model.named_parameters())

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """See Loop."""
        with loss_parallel():
            loss = token_loss(self._model(tokens), targets)
            loss.backward()
        self._clip()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.full_tensor() if isinstance(loss, DTensor) else loss)

    def _clip(self) -> None:
        """Torch takes no lists in which some tensors are cut and others are not."""
        each = list(self._model.parameters())
        cut = [parameter for parameter in each if isinstance(parameter, DTensor)]
        whole = [parameter for parameter in each if not isinstance(parameter, DTensor)]
        of_cut = nn.utils.get_total_norm([p.grad for p in cut if p.grad is not None])
        of_whole = nn.utils.get_total_norm([p.grad for p in whole if p.grad is not None])
        assert isinstance(of_cut, DTensor)
        norm = (of_cut.full_tensor().square() + of_whole.square()).sqrt()
        for some in (cut, whole):
            nn.utils.clip_grads_with_norm_(some, CLIP, norm)


class HandCut:
    """The same cuts on plain tensors, with the sums of Megatron-LM (Shoeybi et al. 2019) and Trimtab's own product."""

    def __init__(self, network: Network, seed: int, rank: int, ranks: int) -> None:
        self._model = HandCutDecoder(network, filled(network, seed), rank, ranks)
        self._loss = HandCutLoss(rank, ranks, network.vocab)
        self._optimizer = adamw(self._model.named_parameters())

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """See Loop."""
        loss = self._loss(self._model(tokens), targets) / targets.numel()
        loss.backward()
        self._clip()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def _clip(self) -> None:
        cut, whole = self._model.cut_and_whole()
        squares = nn.utils.get_total_norm([p.grad for p in cut if p.grad is not None]).square()
        dist.all_reduce(squares)
        squares += nn.utils.get_total_norm([p.grad for p in whole if p.grad is not None]).square()
        nn.utils.clip_grads_with_norm_([*cut, *whole], CLIP, squares.sqrt())


class Pipeline:
    """Stages of equal layers under torch's 1F1B; the tied matrix stands on the first and on the last rank."""

    def __init__(self, network: Network, seed: int, rank: int, ranks: int, microbatches: int) -> None:
        self._rank, self._ranks, self._microbatches = rank, ranks, microbatches
        self._model = Stage(filled(network, seed), rank, ranks)
        stage = PipelineStage(self._model, rank, ranks, torch.device("cpu"))
        self._num_tokens = 0
        self._schedule = Schedule1F1B(stage, microbatches, loss_fn=self._loss_of, scale_grads=False)
        self._optimizer = adamw(self._model.named_parameters())

    def step(self, tokens: Tensor, targets: Tensor) -> float | None:
        """See Loop."""
        self._num_tokens = targets.numel()
        losses: list[Tensor] = []
        if self._rank == 0:
            self._schedule.step(tokens)
        else:
            self._schedule.step(target=targets, losses=losses)
        tied = self._model.embedding.weight.grad
        assert tied is not None
        dist.all_reduce(tied)
        self._clip(tied)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(sum(losses)) if losses else None

    def _loss_of(self, logits: Tensor, targets: Tensor) -> Tensor:
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return loss / self._num_tokens

    def _clip(self, tied: Tensor) -> None:
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        counted = [gradient for gradient in gradients if self._rank == 0 or gradient is not tied]
        squares = nn.utils.get_total_norm(counted).square()
        dist.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(self._model.parameters(), CLIP, squares.sqrt())


class Stage(nn.Module):
    """The layers of one rank of a pipeline, with the embedding on the first rank and the head on the last."""

    def __init__(self, decoder: Decoder, rank: int, ranks: int) -> None:
        super().__init__()
        self.is_first, self.is_last = rank == 0, rank == ranks - 1
        of_rank = len(decoder.layers) // ranks
        self.embedding = decoder.embedding
        if self.is_first:
            self.positions = decoder.positions
        self.layers = nn.ModuleList(decoder.layers[rank * of_rank : (rank + 1) * of_rank])
        if self.is_last:
            self.final_norm = decoder.final_norm

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or the stream, to the stream or logits."""
        if self.is_first:
            x = self.embedding(x) + self.positions.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, None)
        return linear(self.final_norm(x), self.embedding.weight) if self.is_last else x


def ddp(network: Network, seed: int, rank: int, ranks: int) -> Loop:
    """DDP with gradients as views of its buckets."""
    model = DistributedDataParallel(filled(network, seed), gradient_as_bucket_view=True, static_graph=True)
    return DataParallel(model, rank, ranks)


def fsdp(network: Network, seed: int, rank: int, ranks: int) -> Loop:
    """FSDP2, layer by layer; parameters are gathered again for the backward pass."""
    model = filled(network, seed)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return DataParallel(model, rank, ranks)


Build = Callable[[Network, int, int, int], Loop]
"""From network, seed, rank and number of ranks."""

LOOPS: Mapping[str, Build] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "tp": HandCut,
    "tp-dtensor": lambda network, seed, _, ranks: TensorParallel(network, seed, ranks),
    "pp": lambda *given: Pipeline(*given, microbatches=MICROBATCHES),
}
"""By layout."""

MICROBATCHES = 8
"""Of the pipeline."""


def filled(network: Network, seed: int) -> Decoder:
    """The decoder with its initial weights."""
    model = Decoder(network, KeyedRandom())
    model.initialize(seed)
    return model


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over the tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(parameters: Iterable[tuple[str, Any]]) -> torch.optim.Optimizer:
    """Fused AdamW; matrices decay."""
    groups: dict[tuple[bool, bool], list[Any]] = {}
    for _, parameter in parameters:
        groups.setdefault((parameter.ndim >= 2, isinstance(parameter, DTensor)), []).append(parameter)
    options = [
        {"params": found, "weight_decay": DECAY if is_matrix else 0.0}
        for (is_matrix, _), found in groups.items()
    ]
    return torch.optim.AdamW(options, lr=LR, betas=BETAS, fused=True)
