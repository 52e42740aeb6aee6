"""Are a lowered plan's gradients, bit by bit, those of the decoder, whatever the pipeline and the storage?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.conftest import CrewOf
from tests.runtime.lowering.small_plans import LEARNED, ROTARY, small_plan
from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator, OperatorKind
from trimtab.plan.tables import Table
from trimtab.runtime.decoder import Decoder, token_loss_sum
from trimtab.runtime.lowering import Rank, Rules, Wires
from trimtab.runtime.lowering.batches import microbatches_of
from trimtab.runtime.lowering.extents import Layouts, take
from trimtab.runtime.lowering.scopes import Observer, Scope
from trimtab.runtime.lowering.verification import ragged_batch
from trimtab.runtime.optimizers import Sgd
from trimtab.runtime.random_keys import KeyedRandom

SEED = 5
LR = 0.5
UNTIED = {**LEARNED, "tied": False}
GROUPED = {**ROTARY, "qk_norm": False}


@dataclass(frozen=True, slots=True)
class _Rate:
    """A learning rate that can be sent to other processes."""

    lr: float

    def __call__(self, step: int) -> float:
        return self.lr


RULES = Rules(optimizer=Sgd(lr=LR), learning_rate=_Rate(LR), clip=None)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As ranks of a crew have: the threads that share a sum are among what its bits depend on."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "fields", [LEARNED, UNTIED, ROTARY, GROUPED], ids=["tied", "untied", "rotary", "grouped"]
)
def test_gradients_of_a_microbatch_are_those_of_autograd(fields: dict[str, Any]) -> None:
    """A run that moves from replicas to a lowered plan would go on with other bits."""
    plan = small_plan("", 1, batch=2, microbatch=2, **fields)
    loss, gradients = _of_plan(plan)
    expected_loss, expected = _of_decoder(plan)
    assert loss == expected_loss
    assert gradients.keys() == expected.keys()
    differing = [name for name, gradient in expected.items() if not torch.equal(gradients[name], gradient)]
    assert differing == []


def test_microbatches_are_added_as_autograd_adds_them() -> None:
    """The order of microbatches is part of the result; a tied matrix is added up apart, see the lowering."""
    plan = small_plan("", 1, batch=6, microbatch=2, **UNTIED)
    _, gradients = _of_plan(plan)
    _, expected = _of_decoder(plan)
    assert [name for name in expected if not torch.equal(gradients[name], expected[name])] == []


class _Looker(Observer):
    """Keeps the gradients that the optimizer is given."""

    def __init__(self) -> None:
        self.gradients: dict[str, Tensor] = {}

    def begins(self, scope: Scope, operator: Operator) -> None:
        if operator.kind is OperatorKind.UPDATE:
            self.gradients[operator.parameters[0]] = scope.tensors[operator.inputs[0]].clone()


def _of_plan(plan: Plan) -> tuple[float, Mapping[str, Tensor]]:
    """Loss per token, and the gradients of the sum that the optimizer is given."""
    looker = _Looker()
    rank = Rank(plan, 0, Wires(0, 1), RULES, seed=SEED, observe=looker)
    outcome = rank.step(microbatches_of(plan.work, *ragged_batch(plan, 0, 0)), 0)
    assert outcome.loss is not None
    return outcome.loss, looker.gradients


def _of_decoder(plan: Plan) -> tuple[float, Mapping[str, Tensor]]:
    decoder = Decoder(plan.network, KeyedRandom())
    decoder.initialize(SEED)
    total, count = torch.zeros(()), 0
    for tokens, targets in microbatches_of(plan.work, *ragged_batch(plan, 0, 0)):
        loss, num_targets = token_loss_sum(decoder(tokens), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        total, count = total + loss.detach(), count + num_targets
    gradients = {}
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None
        gradients[name] = parameter.grad
    return float(total) / count, gradients


PIPELINES = [
    "MESH pp 2\nSPLIT layers OVER pp USING gpipe MICROBATCHES 4",
    "MESH pp 2\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 4",
    "MESH pp 2\nSPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 4",
]


@pytest.mark.process
@pytest.mark.parametrize("text", PIPELINES, ids=["gpipe", "1f1b", "interleaved"])
# Not LEARNED: one rank adds both uses of a tied matrix up in one sum; with shares they are apart on any number of stages.
@pytest.mark.parametrize("fields", [UNTIED, ROTARY], ids=["untied", "rotary"])
def test_stages_do_not_change_a_bit(text: str, fields: dict[str, Any], crew_of: CrewOf) -> None:
    """Another pp degree after a loss must give the run that there would have been."""
    one = small_plan("", 1, batch=8, microbatch=2, **fields)
    many = small_plan(text, 2, batch=8, microbatch=2, **fields)
    _compare(many, _stepped(Wires(0, 1), one), crew_of(2).run(_stepped, many))


@pytest.mark.process
@pytest.mark.parametrize(
    ("tables", "fields"),
    [
        ("states", LEARNED),
        # Not LEARNED: of a tied matrix each use is scattered by itself, so its four summands are added in another order.
        ("grads, states", UNTIED),
        ("params, grads, states", UNTIED),
        ("params, grads, states", ROTARY),
    ],
    ids=["zero1, tied", "zero2", "zero3", "zero3, rotary"],
)
def test_storage_does_not_change_a_bit(tables: str, fields: dict[str, Any], crew_of: CrewOf) -> None:
    """Another STORE must give the run that there would have been."""
    replicated = small_plan("MESH dp 2", 2, batch=8, microbatch=4, **fields)
    stored = small_plan(f"MESH dp 2\nSTORE {tables} OVER dp", 2, batch=8, microbatch=4, **fields)
    expected = crew_of(2).run(_stepped, replicated)
    assert all(torch.equal(expected[0][name], weights) for name, weights in expected[1].items())
    _compare(stored, expected[0], crew_of(2).run(_stepped, stored))


def _stepped(wires: Wires, plan: Plan) -> dict[str, Tensor]:
    """A rank's pieces after two steps."""
    rank = Rank(plan, wires.rank, wires, RULES, seed=SEED)
    for number in range(2):
        rank.step(microbatches_of(plan.work, *ragged_batch(plan, 0, number)), number)
    return dict(rank.stored)


def _compare(plan: Plan, wholes: Mapping[str, Tensor], pieces: list[dict[str, Tensor]]) -> None:
    """Every piece is cut from a whole, and every whole has pieces."""
    layouts = Layouts(plan.mesh)
    for rank, held in enumerate(pieces):
        for name, piece in held.items():
            parameter = plan.parameters[name]
            placements = parameter.stored[Table.PARAMS.value]
            extent = layouts.extent(parameter.dims, parameter.shape, placements, rank)
            assert torch.equal(piece, take(wholes[name], extent)), name
    assert {name for held in pieces for name in held} == set(wholes)
