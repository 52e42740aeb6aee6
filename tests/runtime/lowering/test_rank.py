"""Does one rank run a plan as the decoder runs, and hold no more than the plan says?"""

from typing import Any

import pytest
import torch

from tests.runtime.lowering.small_plans import DROPPING, LEARNED, ROTARY, WINDOWED, small_plan
from trimtab.plan.program import Operator
from trimtab.runtime.decoder import Decoder, token_loss_sum
from trimtab.runtime.lowering import Rank, Rules, Wires
from trimtab.runtime.lowering.batches import microbatches_of
from trimtab.runtime.lowering.scopes import Observer, Scope
from trimtab.runtime.lowering.verification import ragged_batch
from trimtab.runtime.optimizers import Sgd
from trimtab.runtime.random_keys import KeyedRandom

RULES = Rules(optimizer=Sgd(lr=0.5), learning_rate=lambda _: 0.5, clip=None)


@pytest.mark.parametrize("fields", [LEARNED, ROTARY, WINDOWED])
def test_is_the_decoder(fields: dict[str, Any]) -> None:
    """The interpreter of plans and the decoder are two implementations of one mathematics."""
    plan = small_plan("", 1, batch=4, microbatch=2, **fields)
    tokens, targets = ragged_batch(plan, 0, 0)
    rank = Rank(plan, 0, Wires(0, 1), RULES, seed=5)
    decoder = Decoder(plan.network, KeyedRandom())
    decoder.initialize(5)
    assert all(torch.equal(rank.stored[name], value) for name, value in decoder.named_parameters())
    outcome = rank.step(microbatches_of(plan.work, tokens, targets), 0)
    loss, count = token_loss_sum(decoder(tokens), targets)
    (loss / count).backward()  # type: ignore[no-untyped-call]
    assert outcome.num_tokens == count
    assert outcome.loss == pytest.approx(float(loss.detach()) / count, rel=1e-6)
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(
            rank.stored[name], parameter.detach() - 0.5 * parameter.grad, rtol=1e-5, atol=1e-6
        )


def test_recompute_lets_go_and_makes_again() -> None:
    """RECOMPUTE that keeps everything would save no memory."""
    plans = [
        small_plan(text, 1, batch=1, **LEARNED) for text in ("MESH dp 1", "MESH dp 1\nRECOMPUTE activations")
    ]
    kept, recomputed = (_kept_by_last_forward(plan) for plan in plans)
    assert "attention_norm" in kept[1]
    assert recomputed[1] == set(plans[1].blocks[1].kept)
    assert "attention_norm" not in recomputed[1]
    assert len(recomputed[1]) < len(kept[1]) / 4


def _kept_by_last_forward(plan: Any) -> dict[int, set[str]]:
    """For each site the values that its backward pass begins with."""
    found: dict[int, set[str]] = {}

    class Look(Observer):
        def begins(self, scope: Scope, operator: Operator) -> None:
            if scope.site is not None and scope.phase.value in ("recompute", "backward"):
                names = {name for name in scope.tensors if not name.startswith("grad:")}
                found.setdefault(scope.site.index, names)

    rank = Rank(plan, 0, Wires(0, 1), RULES, seed=5, observe=Look())
    rank.step(microbatches_of(plan.work, *ragged_batch(plan, 0, 0)), 0)
    return found


def test_a_batch_without_targets_changes_nothing() -> None:
    """A mean over no token is no number, and would be in every weight from then on."""
    plan = small_plan("", 1, batch=2, **LEARNED)
    rank = Rank(plan, 0, Wires(0, 1), RULES, seed=5)
    before = {name: tensor.clone() for name, tensor in rank.stored.items()}
    tokens, targets = ragged_batch(plan, 0, 0)
    outcome = rank.step(microbatches_of(plan.work, tokens, torch.full_like(targets, -100)), 0)
    assert (outcome.num_tokens, outcome.loss, outcome.norm) == (0, None, None)
    assert all(torch.equal(rank.stored[name], tensor) for name, tensor in before.items())


def test_rows_without_a_share_predict_nothing() -> None:
    """Three ranks and four shares: in the second turn two ranks have nothing, and may not train on it."""
    plan = small_plan("MESH dp 3", 3, shares=4, batch=8, **LEARNED)
    tokens, targets = ragged_batch(plan, 0, 0)
    microbatches = microbatches_of(plan.work, tokens, targets)
    assert [int((some != -100).any(1).sum()) for _, some in microbatches] == [3, 3, 1, 1]
    assert sum(int((some != -100).sum()) for _, some in microbatches) == int((targets != -100).sum())


def test_evaluation_drops_nothing() -> None:
    """A loss of the held-out split under masks is too high, and another one each time."""
    plan = small_plan("", 1, batch=2, **DROPPING)
    rank = Rank(plan, 0, Wires(0, 1), RULES, seed=5)
    tokens, targets = ragged_batch(plan, 0, 0)
    (microbatch, *_) = microbatches_of(plan.work, tokens, targets)
    decoder = Decoder(plan.network, KeyedRandom()).eval()
    decoder.fill(lambda name: rank.stored[name])
    expected, _ = token_loss_sum(decoder(microbatch[0]), microbatch[1])
    assert rank.score(microbatch) == pytest.approx(float(expected.detach()), rel=1e-6)
