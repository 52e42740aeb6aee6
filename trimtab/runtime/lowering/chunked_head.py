"""The head some tokens at a time: logits of a chunk, what the loss needs of them, and their gradient; none are kept.

Shapes: N tokens of the rank, D width, V the own part of the vocabulary. What is made of logits is in fp32.

A chunk is as many tokens as the plan says, whoever computes them: so the bits are those of any number of ranks. The matrix's
gradient is added up over chunks, in place, some rows after the others, so that no second matrix of its size exists.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.plan.lifetimes import gradient_rows
from trimtab.runtime.decoder import IGNORED_TARGET
from trimtab.runtime.linear import input_gradient, linear, weight_gradient
from trimtab.runtime.lowering.extents import Run
from trimtab.runtime.lowering.losses import own_targets


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkedHead:
    """The head of one rank.

    Args:
        at_once: Tokens of a chunk.
        vocab: The own part of the vocabulary, padding behind it.
        dtype: Of matrix products.
    """

    at_once: int
    vocab: Run
    dtype: torch.dtype

    def sums(self, x_BTD: Tensor, targets_BT: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
        """Of the own logits: the maximum [B, T]; the sum of exponentials less it, and the target's logit [B, T, 2].

        Without a logit of its own, because all are padding, a rank has -inf and zeros.
        """
        highest_BT = torch.empty(x_BTD.shape[:-1], dtype=torch.float32, device=x_BTD.device)
        sums_BT2 = torch.empty((*x_BTD.shape[:-1], 2), dtype=torch.float32, device=x_BTD.device)
        weight_VD = weight_VD.to(self.dtype)
        for x_ND, targets, highest, sums in self._chunks(x_BTD, targets_BT, highest_BT, sums_BT2):
            logits = self._logits(x_ND, weight_VD)
            own, place = own_targets(targets, self.vocab)
            torch.amax(logits, -1, out=highest)
            aimed = logits.gather(-1, place[..., None])[..., 0]
            sums[..., 1] = torch.where(own, aimed, 0.0)
            shift = highest.clamp_min(torch.finfo(torch.float32).min)
            sums[..., 0] = logits.sub_(shift[..., None]).exp_().sum(-1)
        return highest_BT, sums_BT2

    def gradients(
        self, x_BTD: Tensor, targets_BT: Tensor, highest_BT: Tensor, sums_BT2: Tensor, weight_VD: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the summed loss: of the input, in its type, and of the matrix, in fp32.

        Args:
            x_BTD: As in the forward pass.
            targets_BT: The same.
            highest_BT: The maximum over the whole vocabulary.
            sums_BT2: The same sums over all of it, less that maximum.
            weight_VD: The matrix.
        """
        of_x_BTD = torch.empty_like(x_BTD)
        of_weight_VD = torch.zeros(weight_VD.shape, dtype=torch.float32, device=x_BTD.device)
        weight_VD = weight_VD.to(self.dtype)
        whole = (x_BTD, targets_BT, highest_BT, sums_BT2, of_x_BTD)
        for x_ND, targets, highest, sums, of_x in self._chunks(*whole):
            logits = self._logits(x_ND, weight_VD).sub_(highest[..., None])
            weights = logits.exp_().div_(sums[..., :1])
            del logits
            own, place = own_targets(targets, self.vocab)
            weights.scatter_add_(-1, place[..., None], -own[..., None].float())
            of_logits = weights.mul_((targets != IGNORED_TARGET)[..., None]).to(self.dtype)
            del weights
            of_x.copy_(input_gradient(of_logits, weight_VD))
            _add_weight_gradient(of_weight_VD, of_logits, x_ND.to(self.dtype))
        return of_x_BTD, of_weight_VD

    def _logits(self, x_ND: Tensor, weight_VD: Tensor) -> Tensor:
        logits = linear(x_ND.to(self.dtype), weight_VD).float()
        if not self.vocab.is_whole:
            logits[..., self.vocab.real :] = -math.inf
        return logits

    def _chunks(self, *tensors_BT: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Views of tensors that begin with B and T, some tokens at a time."""
        split = [torch.split(tensor.flatten(0, 1), self.at_once) for tensor in tensors_BT]
        yield from zip(*split, strict=True)


def rescaled(sums_BT2: Tensor, own_BT: Tensor, highest_BT: Tensor) -> Tensor:
    """Sums less the own maximum as sums less the maximum of all ranks; what they say of targets stays."""
    found_BT2 = sums_BT2.clone()
    found_BT2[..., 0] *= (own_BT - highest_BT).exp()
    return found_BT2


def _add_weight_gradient(total_VD: Tensor, of_logits_NV: Tensor, x_ND: Tensor) -> None:
    size = gradient_rows(total_VD.shape[0])
    pieces = zip(torch.split(total_VD, size), torch.split(of_logits_NV, size, dim=1), strict=True)
    for total, of_logits in pieces:
        total += weight_gradient(of_logits, x_ND)
