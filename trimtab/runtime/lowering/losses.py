"""The sum of token losses, with logits whole or cut along the vocabulary; padded columns count nowhere.

Shapes: B samples, T tokens, V vocabulary, or the rank's part of it. Everything is in fp32.

Logits are the largest activations of many networks, and copies of them in fp32 larger still. So a part of the vocabulary is
looked at some tokens after the others: a token's numbers come from its own logits, and so have the same bits.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.plan.lifetimes import loss_tokens
from trimtab.runtime.decoder import IGNORED_TARGET
from trimtab.runtime.lowering.extents import Run


def highest(logits_BTV: Tensor, vocab: Run) -> Tensor:
    """The maximum over the own part of the vocabulary [B, T]; -inf if all of it is padding."""
    return torch.cat([_masked(logits, vocab).amax(-1) for (logits,) in _by_tokens(logits_BTV)]).view(
        logits_BTV.shape[:-1]
    )


def vocabulary_sums(logits_BTV: Tensor, targets_BT: Tensor, highest_BT: Tensor, vocab: Run) -> Tensor:
    """Of the own part: the sum of exponentials less the maximum, and the target's logit [B, T, 2]."""
    sums = [
        (_masked(logits, vocab) - highest[..., None]).exp_().sum(-1)
        for logits, highest in _by_tokens(logits_BTV, highest_BT)
    ]
    own_BT, place_BT = own_targets(targets_BT, vocab)
    aimed_BT = logits_BTV.gather(-1, place_BT[..., None])[..., 0].float() * own_BT
    return torch.stack((torch.cat(sums).view_as(aimed_BT), aimed_BT), dim=-1)


def loss_sum(targets_BT: Tensor, highest_BT: Tensor, sums_BT2: Tensor) -> Tensor:
    """The sum over all targets of this rank's tokens."""
    by_token = sums_BT2[..., 0].log() + highest_BT - sums_BT2[..., 1]
    return (by_token * (targets_BT != IGNORED_TARGET)).sum()


def loss_gradient(
    logits_BTV: Tensor, targets_BT: Tensor, highest_BT: Tensor, sums_BT2: Tensor, vocab: Run
) -> Tensor:
    """Gradient of the own logits, in their type: the softmax less one at the target, zero where there is no target."""
    found_BTV = torch.empty(logits_BTV.shape, dtype=logits_BTV.dtype, device=logits_BTV.device)
    pieces = _by_tokens(logits_BTV, targets_BT, highest_BT, sums_BT2, found_BTV)
    for logits, targets, highest, sums, found in pieces:
        weights = (_masked(logits, vocab) - highest[..., None]).exp_().div_(sums[..., :1])
        own, place = own_targets(targets, vocab)
        weights.scatter_add_(-1, place[..., None], -own[..., None].float())
        found.copy_(weights.mul_((targets != IGNORED_TARGET)[..., None]))
    return found_BTV


def _by_tokens(logits_BTV: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of tensors that begin with B and T, some tokens at a time, [tokens, …]."""
    flat = [tensor.flatten(0, 1) for tensor in (logits_BTV, *others)]
    yield from zip(*(torch.split(tensor, loss_tokens(*flat[0].shape)) for tensor in flat), strict=True)


def own_targets(targets_BT: Tensor, vocab: Run) -> tuple[Tensor, Tensor]:
    """Whether each target stands in the own part, and where (0 where it does not)."""
    place_BT = targets_BT - vocab.start
    own_BT = (place_BT >= 0) & (place_BT < vocab.real)
    return own_BT, place_BT * own_BT


def whole_loss_sum(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """The same from logits of the whole vocabulary: the decoder's own loss."""
    return functional.cross_entropy(
        logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
    )


def whole_loss_gradient(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Its gradient, with the bits that autograd gets."""
    with torch.enable_grad():
        logits_BTV = logits_BTV.float().detach().requires_grad_()
        (found,) = torch.autograd.grad(whole_loss_sum(logits_BTV, targets_BT), [logits_BTV])
    return found


def _masked(logits_BTV: Tensor, vocab: Run) -> Tensor:
    logits_BTV = logits_BTV.float()
    if vocab.is_whole:
        return logits_BTV
    is_padding_V = torch.arange(vocab.length) >= vocab.real
    return logits_BTV.masked_fill(is_padding_V, -math.inf)
