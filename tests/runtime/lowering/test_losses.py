"""Is the loss of a cut vocabulary the loss of the whole one?"""

import pytest
import torch
from torch.nn import functional

from trimtab.plan.lifetimes import loss_tokens
from trimtab.runtime.lowering import losses
from trimtab.runtime.lowering.extents import Run
from trimtab.runtime.lowering.measurement.storages import StorageTracker

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_have_the_same_bits_alone(dtype: torch.dtype) -> None:
    """Some tokens at a time are some tokens of all: how many there are at once must not be seen in a run's bits."""
    chance, vocab = torch.Generator().manual_seed(1), Run(5003, 4999, 5003)
    logits = torch.randn((2, 24, vocab.length), generator=chance).mul_(5).to(dtype)
    targets = torch.randint(0, 12000, (2, 24), generator=chance)
    targets[0, 3] = -100
    assert loss_tokens(48, vocab.length) < 48
    highest = losses.highest(logits, vocab)
    sums = losses.vocabulary_sums(logits, targets, highest, vocab)
    gradient = losses.loss_gradient(logits, targets, highest, sums, vocab)
    masked = logits.float().masked_fill(torch.arange(vocab.length) >= vocab.real, -torch.inf)
    assert torch.equal(highest, masked.amax(-1))
    assert torch.equal(sums[..., 0], (masked - highest[..., None]).exp().sum(-1))
    expected = (masked - highest[..., None]).exp() / sums[..., :1]
    own = (targets >= vocab.start) & (targets < vocab.start + vocab.real)
    places = (targets - vocab.start) * own
    expected.scatter_add_(-1, places[..., None], -own[..., None].float())
    expected *= (targets != -100)[..., None]
    assert torch.equal(gradient, expected.to(dtype))
    aimed = logits.float().gather(-1, places[..., None])[..., 0] * own
    assert torch.equal(sums[..., 1], aimed)


def test_a_part_of_the_vocabulary_is_not_copied() -> None:
    """With 128000 tokens of vocabulary a copy in fp32 of a microbatch's logits is the largest thing in memory."""
    logits = torch.randn((1, 64, 4096)).to(torch.bfloat16)
    targets, vocab = torch.zeros((1, 64), dtype=torch.int64), Run(4096, 4096, 4096)
    with StorageTracker() as tracker:
        tracker.leave_out([logits, targets])
        highest = losses.highest(logits, vocab)
        sums = losses.vocabulary_sums(logits, targets, highest, vocab)
        forward = tracker.peak.total_bytes
        gradient = losses.loss_gradient(logits, targets, highest, sums, vocab)
        backward = tracker.peak.total_bytes - gradient.nbytes
    assert forward < logits.nbytes / 2
    assert backward < logits.nbytes / 2
