"""Do sums with loss keep what they do not send, and send what the plan says?"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.runtime.lowering.small_plans import LEARNED, small_plan
from trimtab.plan.physical import Plan
from trimtab.plan.program import Transfer
from trimtab.runtime.lowering import Crew, Outcome, Rank, Rules, Wires
from trimtab.runtime.lowering.accounting import planned
from trimtab.runtime.lowering.batches import microbatches_of
from trimtab.runtime.lowering.compression import Compressor
from trimtab.runtime.lowering.routes import Route
from trimtab.runtime.lowering.verification import ragged_batch
from trimtab.runtime.lowering.wires import Count, Sent
from trimtab.runtime.optimizers import AdamW

pytestmark = pytest.mark.process

STEPS = 12


def _rate(_: int) -> float:
    return 3e-3


def train(wires: Wires, argument: Any) -> tuple[Sequence[Outcome], dict[Sent, Count]]:
    """Some steps on one batch, as a rank of a crew runs them."""
    plan = argument
    wires.counts.clear()
    rules = Rules(optimizer=AdamW(lr=3e-3), learning_rate=_rate, clip=1.0)
    rank = Rank(plan, wires.rank, wires, rules, seed=1)
    batch = microbatches_of(plan.work, *ragged_batch(plan, 0, 0))
    return [rank.step(batch, number) for number in range(STEPS)], dict(wires.counts)


def add_up(wires: Wires, transfer: Transfer) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of many lossy sums of the same matrices, and their true sum."""
    own, other = (torch.randn((12, 10), generator=torch.Generator().manual_seed(rank)) for rank in (0, 1))
    compressor, what = Compressor(), Sent("update", "update", "all_reduce", ("x",), ("dp",), "native")
    wires.open_groups([(0, 1)])
    total = torch.zeros_like(own)
    for _ in range(TIMES):
        line = wires.line(what, (0, 1))
        mine = own if wires.rank == 0 else other
        total += compressor.all_reduce(line, Route(name=transfer.route), transfer, ("x",), [mine])[0]
    return total / TIMES, own + other


TIMES = 200


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer(axes=("dp",), compress="int8"),
        Transfer(axes=("dp",), compress="int8", route="ring"),
        Transfer(axes=("dp",), compress="topk", compress_argument=0.05),
        Transfer(axes=("dp",), compress="powersgd", compress_argument=2.0),
    ],
)
def test_what_is_not_sent_now_is_sent_later(transfer: Transfer, crew_of: Callable[[int], Crew]) -> None:
    """Without error feedback small gradients would never arrive."""
    for mean, expected in crew_of(2).run(add_up, transfer):
        assert float((mean - expected).abs().max()) < 0.25
        assert float((mean - expected).norm() / expected.norm()) < 0.05


@pytest.fixture(scope="module")
def plain(crew_of: Callable[[int], Crew]) -> Sequence[Outcome]:
    """The same steps with everything sent."""
    outcomes, _ = crew_of(2).run(train, small_plan("MESH dp 2", 2, **LEARNED))[0]
    return outcomes


@pytest.mark.parametrize(
    "clause",
    [
        "COMPRESS bf16",
        "IN bf16",
        "COMPRESS int8",
        "WHERE dims LIKE '%,%' OVER dp COMPRESS topk(0.1)",
        "WHERE dims LIKE '%,%' OVER dp COMPRESS powersgd(4)",
    ],
)
def test_trains_on_what_it_sends(
    clause: str, plain: Sequence[Outcome], crew_of: Callable[[int], Crew]
) -> None:
    """A residual that is lost, or added twice, shows as a loss that does not fall with the plain one."""
    over = "" if "OVER" in clause else "OVER dp "
    plan = small_plan(f"MESH dp 2\nREDUCE grads {over}{clause}", 2, **LEARNED)
    lossy = crew_of(2).run(train, plan)
    first, last = plain[0].loss, plain[-1].loss
    found = lossy[0][0][-1].loss
    assert first is not None
    assert last is not None
    assert found is not None
    assert last < first - 0.5
    assert abs(found - last) < 0.5 * (first - last)
    assert [outcome.loss for outcome in lossy[0][0]] == [outcome.loss for outcome in lossy[1][0]]
    for said, (_, counts) in zip(planned(plan, STEPS), lossy, strict=True):
        assert dict(said) == counts


def keys_after_a_step(wires: Wires, plan: Plan) -> list[str]:
    """The blocks whose sums have left something over."""
    rules = Rules(optimizer=AdamW(lr=3e-3), learning_rate=_rate, clip=1.0)
    rank = Rank(plan, wires.rank, wires, rules, seed=1)
    rank.step(microbatches_of(plan.work, *ragged_batch(plan, 0, 0)), 0)
    return sorted({where for where, *_ in rank.compressor.residuals})


def test_a_layer_is_not_given_what_another_has_left_over(crew_of: Callable[[int], Crew]) -> None:
    """Layers of one block have one program; the error of one in the gradient of the next would never be made good."""
    text = "MESH dp 2\nSTORE params, grads, states OVER dp\nREDUCE grads OVER dp COMPRESS int8"
    found = crew_of(2).run(keys_after_a_step, small_plan(text, 2, **LEARNED))
    assert found == [["embedding", "head", *(f"layer {layer}" for layer in range(4))]] * 2


def weights_after_two_steps(wires: Wires, plan: Plan) -> dict[str, torch.Tensor]:
    """Of one rank."""
    rules = Rules(optimizer=AdamW(lr=3e-3), learning_rate=_rate, clip=1.0)
    rank = Rank(plan, wires.rank, wires, rules, seed=1)
    for number in range(2):
        rank.step(microbatches_of(plan.work, *ragged_batch(plan, 0, number)), number)
    return {name: piece.clone() for name, piece in rank.stored.items()}


@pytest.mark.parametrize("clause", ["COMPRESS powersgd(2)", "IN bf16"])
def test_groups_that_sum_differently_keep_their_replicas_alike(
    clause: str, crew_of: Callable[[int], Crew]
) -> None:
    """Summed over the pools first, the old cards' weights would drift away from those of the new ones."""
    text = f"MESH pool 2, dp 2\nREDUCE grads OVER pool\nREDUCE grads OVER dp {clause} ON rank < 2"
    first, *others = crew_of(4).run(weights_after_two_steps, small_plan(text, 4, **LEARNED))
    for other in others:
        assert all(torch.equal(piece, other[name]) for name, piece in first.items())


@pytest.mark.parametrize(
    "text",
    [
        "MESH pp 2\nSPLIT layers OVER pp MICROBATCHES 4\nCOMPUTE layers IN bf16",
        "MESH dp 2\nSTORE params OVER dp\nKEEP params IN bf16\nCOMPUTE layers WHERE layer < 2 IN bf16",
        "MESH dp 2\nSTORE params, grads, states OVER dp\nKEEP grads IN bf16",
    ],
)
def test_trains_in_the_types_that_lines_say(text: str, crew_of: Callable[[int], Crew]) -> None:
    """Where a block hands on to one of another type, a message of the wrong size would end both ranks."""
    plan = small_plan(text, 2, **LEARNED)
    ran = crew_of(2).run(train, plan)
    outcomes = next(found for found, _ in reversed(ran) if found[0].loss is not None)
    first, last = outcomes[0].loss, outcomes[-1].loss
    assert first is not None
    assert last is not None
    assert last < first - 0.5
    for said, (_, counts) in zip(planned(plan, STEPS), ran, strict=True):
        assert dict(said) == counts
