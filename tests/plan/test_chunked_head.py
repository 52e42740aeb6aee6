"""Logits that are computed again are never whole: what the head's program becomes."""

from dataclasses import replace

import pytest

from tests.plan.conftest import PlanOf
from trimtab.cost.counts import counts_of
from trimtab.cost.flops import step_flops
from trimtab.cost.memory import MemoryCounter
from trimtab.cost.step_memory import StepMemory
from trimtab.plan.lifetimes import loss_tokens
from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator, OperatorKind
from trimtab.plan.verifier import find_wrong
from trimtab.spec import StrategyError

IN_CHUNKS = "RECOMPUTE activations WHERE name = 'logits'"
TENSORS = "MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp"
LAYOUTS = {
    "replicas": "MESH dp 4",
    "stored": "STORE params, grads, states OVER dp",
    "tensors": TENSORS,
    "sequence parallel": f"{TENSORS}\n"
    "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp",
    "context": "MESH dp 2, cp 2\nSPLIT sequence OVER cp USING allgather",
    "the matrix alone": "MESH dp 2, tp 2\nSPLIT heads, mlp OVER tp\n"
    "SPLIT vocab OF params WHERE kind IN ('embedding', 'head') OVER tp IF ANY",
}


def kinds(operators: tuple[Operator, ...]) -> list[OperatorKind]:
    return [operator.kind for operator in operators]


@pytest.mark.parametrize("model", ["gpt-3m", "llama-3m"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_value_holds_logits(layout: str, model: str, plan_of: PlanOf) -> None:
    """With a large vocabulary logits are the largest tensor of a step, and their gradient another."""
    plan = plan_of(f"{LAYOUTS[layout]}\n{IN_CHUNKS}", model=model)
    head = plan.blocks[-1]
    assert not [value.name for value in head.values.values() if {"batch", "vocab"} <= {*value.dims}]
    assert OperatorKind.HEAD_SUMS in kinds(head.forward)
    assert OperatorKind.HEAD_SUMS_GRAD in kinds(head.backward)
    is_cut = layout in ("tensors", "sequence parallel", "the matrix alone")
    assert (OperatorKind.RESCALE in kinds(head.forward)) is is_cut


def test_a_chunk_is_a_constant_of_the_run(plan_of: PlanOf) -> None:
    """A chunk that depended on the number of ranks would give the matrix's gradient other bits on other ranks."""
    found = {
        operator.at_once
        for devices, text in (
            (1, ""),
            (2, "MESH dp 2"),
            (4, "MESH dp 4"),
            (2, "MESH pp 2\nSPLIT layers OVER pp"),
        )
        for operator in plan_of(f"{text}\n{IN_CHUNKS}", devices=devices, vocab=8200).blocks[-1].forward
        if operator.kind is OperatorKind.HEAD_SUMS
    }
    plan = plan_of("MESH dp 4", vocab=8200)
    assert found == {loss_tokens(plan.work.microbatch * plan.work.sequence, 8200)}


def test_logits_that_are_summands_are_refused(plan_of: PlanOf) -> None:
    """They are added over ranks before a loss can be made of them; a clause without effect would promise memory."""
    with pytest.raises(StrategyError, match=r"'head\.weight' split along embed over 'tp'") as refused:
        plan_of(
            f"MESH dp 2, tp 2\nSPLIT embed OF params WHERE name = 'head.weight' OVER tp\n{IN_CHUNKS}",
            model="llama-3m",
        )
    assert refused.value.problems[0].span.line == 3


@pytest.mark.parametrize("layout", ["replicas", "tensors"])
def test_what_is_computed_again_is_the_product(layout: str, plan_of: PlanOf) -> None:
    """One product more than without the clause, counted as such and never as useful."""
    text = LAYOUTS[layout]
    plain, again = (step_flops(plan_of(found)) for found in (text, f"{text}\n{IN_CHUNKS}"))
    plan = plan_of(text)
    network = plan.network
    assert again.useful == plain.useful
    assert again.recompute.causal == 2 * network.vocab * network.embed * plan.work.tokens
    assert plain.recompute.causal == 0


@pytest.mark.parametrize("layout", ["replicas", "tensors", "stored"])
def test_the_peak_is_smaller(layout: str, plan_of: PlanOf) -> None:
    """That is what the clause is for: logits and their gradient are the peak of a small network with many words."""
    text = LAYOUTS[layout]
    whole, chunked = (
        plan_of(found, vocab=32000, layers=2, batch=16, microbatch=4)
        for found in (text, f"{text}\n{IN_CHUNKS}")
    )
    logits = 4 * whole.work.microbatch * whole.work.sequence * 32000 // (2 if layout == "tensors" else 1)
    for count in (_as_run, _as_planned):
        assert count(whole) - count(chunked) > 0.9 * logits


def _as_run(plan: Plan) -> int:
    return max(classes.total for classes in StepMemory(plan, counts_of(plan)).of(0).values())


def _as_planned(plan: Plan) -> int:
    return MemoryCounter(plan, counts_of(plan), num_leaves=1).of(0).peak_bytes


@pytest.mark.parametrize("kind", ["rescale", "loss_of_sums", "head_sums_grad"])
def test_the_maximum_of_one_rank_is_told_from_that_of_all(kind: str, plan_of: PlanOf) -> None:
    """Ranks that take their own maximum for that of all scale their parts of the sums by different factors."""
    plan = plan_of(f"{TENSORS}\n{IN_CHUNKS}")
    head = plan.blocks[-1]
    (of_all,) = (operator.outputs[0] for operator in head.forward if operator.inputs == ("vocab_max",))

    def spoiled(operator: Operator) -> Operator:
        if operator.kind.value != kind:
            return operator
        inputs = tuple("vocab_max" if name == of_all else name for name in operator.inputs)
        return replace(operator, inputs=inputs)

    broken = replace(
        head,
        forward=tuple(map(spoiled, head.forward)),
        backward=tuple(map(spoiled, head.backward)),
        kept=(*head.kept, "vocab_max"),
    )
    found = list(find_wrong(replace(plan, blocks=(*plan.blocks[:-1], broken))))
    assert f"{kind} cannot take what it is given over 'tp'" in found[0].message


def test_sums_less_their_own_maximum_are_never_added(plan_of: PlanOf) -> None:
    """The all-reduce without the rescaling before it: a loss that is wrong by what maxima differ."""
    plan = plan_of(f"{TENSORS}\n{IN_CHUNKS}")
    head = plan.blocks[-1]
    forward = [
        replace(operator, inputs=("vocab_sums.own",)) if "vocab_sums" in operator.inputs else operator
        for operator in head.forward
        if operator.kind is not OperatorKind.RESCALE
    ]
    broken = replace(head, forward=tuple(forward))
    found = list(find_wrong(replace(plan, blocks=(*plan.blocks[:-1], broken))))
    assert "all_reduce cannot take what it is given over 'tp'" in found[0].message
