"""Are the loss and its gradients right, and the same on every layout, if logits are never whole?"""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.runtime.lowering.small_plans import LEARNED, ROTARY, small_plan
from tests.runtime.lowering.test_shares import digest_of, train
from trimtab.plan.physical import Plan
from trimtab.plan.program import OperatorKind
from trimtab.runtime.decoder import IGNORED_TARGET
from trimtab.runtime.lowering import Crew
from trimtab.runtime.lowering.chunked_head import ChunkedHead, rescaled
from trimtab.runtime.lowering.extents import Run
from trimtab.runtime.lowering.losses import loss_sum

VOCAB, WIDTH = 19, 6


def _batch() -> tuple[Tensor, Tensor, Tensor]:
    """Vectors [2, 5, D], targets with two that are none, the matrix."""
    generator = torch.Generator().manual_seed(4)
    x_BTD = torch.randn(2, 5, WIDTH, generator=generator) * 3
    targets_BT = torch.randint(0, VOCAB, (2, 5), generator=generator)
    targets_BT[0, 1] = targets_BT[1, 4] = IGNORED_TARGET
    return x_BTD, targets_BT, torch.randn(VOCAB, WIDTH, generator=generator)


def _whole(x_BTD: Tensor, targets_BT: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same by autograd, in fp64."""
    x, weight = (tensor.double().requires_grad_() for tensor in (x_BTD, weight_VD))
    loss = functional.cross_entropy(
        (x @ weight.T).flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
    )
    of_x, of_weight = torch.autograd.grad(loss, [x, weight])
    return loss.detach(), of_x, of_weight


def _by_parts(
    x_BTD: Tensor,
    targets_BT: Tensor,
    weight_VD: Tensor,
    runs: Sequence[Run],
    at_once: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Each run of the vocabulary as a rank of its own would have it, put together as ranks would."""
    heads = [ChunkedHead(at_once=at_once, vocab=run, dtype=dtype) for run in runs]
    parts = [
        functional.pad(weight_VD[run.start : run.start + run.real], (0, 0, 0, run.length - run.real))
        for run in runs
    ]
    own = [head.sums(x_BTD, targets_BT, part) for head, part in zip(heads, parts, strict=True)]
    highest = torch.stack([found for found, _ in own]).amax(0)
    sums = torch.stack([rescaled(found, maximum, highest) for maximum, found in own]).sum(0)
    gradients = [
        head.gradients(x_BTD, targets_BT, highest, sums, part)
        for head, part in zip(heads, parts, strict=True)
    ]
    of_x = torch.stack([found for found, _ in gradients]).sum(0)
    of_weight = torch.cat([found[: run.real] for (_, found), run in zip(gradients, runs, strict=True)])
    return loss_sum(targets_BT, highest, sums), of_x, of_weight


WHOLE = [Run(0, VOCAB, VOCAB)]
PADDED = [Run(0, VOCAB, VOCAB).cut(7, index) for index in range(7)]
"""Three columns on each rank; on the last one, one column and padding."""
EMPTY = [Run(0, 4, 4).cut(3, index) for index in range(3)]


@pytest.mark.parametrize("at_once", [1, 3, 10])
@pytest.mark.parametrize("runs", [WHOLE, PADDED], ids=["whole", "in seven parts"])
def test_loss_and_gradients_are_those_of_whole_logits(runs: list[Run], at_once: int) -> None:
    """A chunk, a padded column or an ignored token that counts wrongly would train another model."""
    batch = _batch()
    for found, expected in zip(_by_parts(*batch, runs, at_once, torch.float32), _whole(*batch), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)


def test_a_rank_that_has_nothing_but_padding_adds_nothing() -> None:
    """Its maximum is -inf: less that, every logit would be no number."""
    x_BTD, targets_BT, weight_VD = _batch()
    targets_BT = targets_BT.clamp_max(3)
    assert EMPTY[-1].real == 0
    found = _by_parts(x_BTD, targets_BT, weight_VD[:4], EMPTY, 3, torch.float32)
    for one, expected in zip(found, _whole(x_BTD, targets_BT, weight_VD[:4]), strict=True):
        torch.testing.assert_close(one.double(), expected, rtol=2e-6, atol=2e-6)


def test_products_in_bf16_are_added_in_fp32() -> None:
    """Chunks rounded to bf16 after every addition would lose what is small."""
    x_BTD, targets_BT, weight_VD = _batch()
    x_BTD, weight_VD = x_BTD.bfloat16(), weight_VD.bfloat16()
    _, of_x, of_weight = _by_parts(x_BTD, targets_BT, weight_VD, WHOLE, 3, torch.bfloat16)
    _, expected_x, expected_weight = _whole(x_BTD, targets_BT, weight_VD)
    assert of_x.dtype is torch.bfloat16
    assert of_weight.dtype is torch.float32
    torch.testing.assert_close(of_x.double(), expected_x, rtol=0.03, atol=0.1)
    torch.testing.assert_close(of_weight.double(), expected_weight, rtol=0.03, atol=0.1)


IN_CHUNKS = "RECOMPUTE activations WHERE name = 'logits'"
MANY_WORDS = {"tied": {**LEARNED, "vocab": 2051}, "apart": {**ROTARY, "vocab": 2051}}
LAYOUTS = {
    "three replicas, one with two shares": (3, "MESH dp 3"),
    "everything stored": (4, "MESH dp 4\nSTORE params, grads, states OVER dp"),
    "two stages": (2, "MESH pp 2\nSPLIT layers OVER pp"),
}


def plan_in_chunks(text: str, devices: int, network: str) -> Plan:
    """Four shares of four samples; the logits of seven tokens at once."""
    plan = small_plan(f"{text}\n{IN_CHUNKS}", devices, batch=16, shares=4, **MANY_WORDS[network])
    (head,) = (found for found in plan.blocks[-1].forward if found.kind is OperatorKind.HEAD_SUMS)
    assert head.at_once == 7
    return plan


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A crew of one computes in this process; every rank of a larger one has one thread: a constant of the run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.process
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("network", MANY_WORDS)
def test_bits_do_not_tell_the_layout(network: str, crew_of: Callable[[int], Crew]) -> None:
    """A chunk is a constant of the run: replicas, storage and stages leave no trace in weights, losses and norms."""
    found = {
        name: digest_of(plan, crew_of(devices).run(train, plan))
        for name, (devices, text) in {"one device": (1, "MESH dp 1"), **LAYOUTS}.items()
        for plan in [plan_in_chunks(text, devices, network)]
    }
    assert set(found.values()) == {found["one device"]}
