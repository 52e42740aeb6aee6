"""The sum of token losses, with logits whole or cut along the vocabulary; padded columns count nowhere.

Shapes: B samples, T tokens, V vocabulary, or the rank's part of it. Everything is in fp32.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.runtime.decoder import IGNORED_TARGET
from trimtab.runtime.lowering.extents import Run


def highest(logits_BTV: Tensor, vocab: Run) -> Tensor:
    """The maximum over the own part of the vocabulary [B, T]; -inf if all of it is padding."""
    return _masked(logits_BTV, vocab).amax(-1)


def vocabulary_sums(logits_BTV: Tensor, targets_BT: Tensor, highest_BT: Tensor, vocab: Run) -> Tensor:
    """Of the own part: the sum of exponentials less the maximum, and the target's logit [B, T, 2]."""
    sums_BT = (_masked(logits_BTV, vocab) - highest_BT[..., None]).exp_().sum(-1)
    own_BT, place_BT = _own_targets(targets_BT, vocab)
    aimed_BT = logits_BTV.float().gather(-1, place_BT[..., None])[..., 0] * own_BT
    return torch.stack((sums_BT, aimed_BT), dim=-1)


def loss_sum(targets_BT: Tensor, highest_BT: Tensor, sums_BT2: Tensor) -> Tensor:
    """The sum over all targets of this rank's tokens."""
    by_token = sums_BT2[..., 0].log() + highest_BT - sums_BT2[..., 1]
    return (by_token * (targets_BT != IGNORED_TARGET)).sum()


def loss_gradient(
    logits_BTV: Tensor, targets_BT: Tensor, highest_BT: Tensor, sums_BT2: Tensor, vocab: Run
) -> Tensor:
    """Gradient of the own logits: the softmax less one at the target, zero where there is no target."""
    # In place: logits are the largest activations of many networks.
    weights_BTV = (_masked(logits_BTV, vocab) - highest_BT[..., None]).exp_().div_(sums_BT2[..., :1])
    own_BT, place_BT = _own_targets(targets_BT, vocab)
    weights_BTV.scatter_add_(-1, place_BT[..., None], -own_BT[..., None].float())
    return weights_BTV.mul_((targets_BT != IGNORED_TARGET)[..., None])


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


def _own_targets(targets_BT: Tensor, vocab: Run) -> tuple[Tensor, Tensor]:
    """Whether each target stands in the own part, and where (0 where it does not)."""
    place_BT = targets_BT - vocab.start
    own_BT = (place_BT >= 0) & (place_BT < vocab.real)
    return own_BT, place_BT * own_BT
