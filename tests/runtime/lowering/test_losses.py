"""Is the loss of a cut vocabulary the loss of the whole one?"""

import torch
from torch.nn import functional

from trimtab.runtime.lowering import losses
from trimtab.runtime.lowering.extents import Run

VOCAB, SIZE = 7, 4
PIECES = (Run(0, 4, 4), Run(4, 3, 4))


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    logits = torch.randn((2, 5, VOCAB), generator=chance)
    targets = torch.randint(0, VOCAB, (2, 5), generator=chance)
    targets[0, 1] = targets[1, 4] = -100
    return logits, targets


def test_cut_vocabulary_with_padding() -> None:
    """A padded column that counts in the softmax leaks probability to tokens that do not exist."""
    logits, targets = _data()
    whole = logits.requires_grad_()
    expected = functional.cross_entropy(
        whole.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    (gradient,) = torch.autograd.grad(expected, whole)
    padded = functional.pad(logits.detach(), (0, 1), value=100.0)
    parts = [padded[..., run.start : run.start + SIZE] for run in PIECES]
    highest = torch.stack([losses.highest(part, run) for part, run in zip(parts, PIECES, strict=True)]).amax(
        0
    )
    sums = sum(
        losses.vocabulary_sums(part, targets, highest, run) for part, run in zip(parts, PIECES, strict=True)
    )
    assert isinstance(sums, torch.Tensor)
    torch.testing.assert_close(losses.loss_sum(targets, highest, sums), expected.detach())
    found = [
        losses.loss_gradient(part, targets, highest, sums, run)
        for part, run in zip(parts, PIECES, strict=True)
    ]
    torch.testing.assert_close(torch.cat(found, -1)[..., :VOCAB], gradient)
    assert not found[1][..., -1].any()


def test_a_part_that_is_all_padding() -> None:
    """With many ranks the last one may have no token at all."""
    nothing = Run(8, 0, 4)
    assert losses.highest(torch.ones(1, 1, 4), nothing).item() == -torch.inf
    sums = losses.vocabulary_sums(torch.ones(1, 1, 4), torch.tensor([[3]]), torch.zeros(1, 1), nothing)
    assert sums.tolist() == [[[0.0, 0.0]]]
