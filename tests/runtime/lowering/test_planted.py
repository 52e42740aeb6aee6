"""Is a mistake found, and named by its tensor, its ratio, its axis and its line?"""

import random
from collections.abc import Callable

import pytest

from tests.plan.random_plans import Spoiling, Spoilt, spoil
from tests.runtime.lowering.small_plans import EXPERTS, LEARNED, ROTARY, question, small_plan
from trimtab.plan.physical import Plan
from trimtab.runtime.lowering import Crew, Divergence, verify

pytestmark = pytest.mark.process

DATA = "MESH dp 2, tp 2\nSPLIT batch OVER dp\nSPLIT heads, mlp, vocab OVER tp"
SEQUENCE = f"{DATA}\nSPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp"
STORED = "MESH dp 4\nSPLIT batch OVER dp\nSTORE params, grads, states OVER dp"
STAGES = "MESH pp 2, dp 2\nSPLIT batch OVER dp\nSPLIT layers OVER pp MICROBATCHES 2"
SPREAD = "MESH dp 2, ep 2\nSPLIT batch OVER dp, ep\nSPLIT experts OVER ep"


def _spoilt(plan: Plan, spoiling: Spoiling, what: str) -> Spoilt:
    """The plan with a sum spoilt that is described so."""
    for seed in range(400):
        for found in spoil(plan, random.Random(seed)):
            if found.spoiling is spoiling and found.what.startswith(what):
                return found
    raise AssertionError(f"no plan with {what} {spoiling}")


def _first(plan: Plan, crew: Crew) -> Divergence:
    divergence = verify(question(plan), crew).divergence
    assert divergence is not None
    return divergence


CASES = {
    "a norm's gradient is scattered twice": (
        SEQUENCE, LEARNED, Spoiling.DOUBLED, "reduce_scatter of grad:final_norm", "gradient of final_norm", "tp", 2.0, 3,
    ),
    "gradients are summed over data twice": (
        DATA, ROTARY, Spoiling.DOUBLED, "all_reduce of acc:embedding.weight", "gradient of embedding.weight", "dp", 2.0, 2,
    ),
    "gradients of experts are not summed": (
        SPREAD, EXPERTS, Spoiling.REMOVED, "all_reduce of acc:layers.0.experts.up.weight",
        "gradient of layers.0.experts.up.weight", "dp", None, 2,
    ),
    "gradients are summed over tensors instead of data": (
        DATA, ROTARY, Spoiling.MOVED, "all_reduce of acc:embedding.weight", "gradient of embedding.weight", "dp", None, 2,
    ),
    "a tied matrix counts twice over stages": (
        STAGES, LEARNED, Spoiling.DOUBLED, "all_reduce of tied:embedding.weight", "gradient of embedding.weight", "pp", 2.0, 3,
    ),
    "targets are counted by each rank": (
        STORED, LEARNED, Spoiling.REMOVED, "all_reduce of num_tokens", "number of targets", "dp", None, 2,
    ),
    "the norm counts every piece four times": (
        STORED, LEARNED, Spoiling.DOUBLED, "all_reduce of norm_square", "square of the gradient norm", "dp", 4.0, 2,
    ),
    "sums over the vocabulary are missing": (
        SEQUENCE, LEARNED, Spoiling.REMOVED, "all_reduce of vocab_sums", "loss", "tp", None, 3,
    ),
    "attention is summed over data": (
        DATA, ROTARY, Spoiling.MOVED, "all_reduce of attention.wo.product", "layers.0.attention.wo", "tp", None, 3,
    ),
    "what the embedding looked up is not summed": (
        DATA, LEARNED, Spoiling.REMOVED, "all_reduce of looked_up", "positions", "tp", None, 3,
    ),
}  # fmt: skip
"""Strategy, network, how a sum is spoilt, which; the tensor, the axis, the ratio and the line that must be told."""


@pytest.mark.parametrize("name", CASES)
def test_names_what_went_wrong(name: str, crew_of: Callable[[int], Crew]) -> None:
    """Whoever is told that something differs, and not what, searches for days."""
    text, fields, spoiling, what, tensor, axis, ratio, line = CASES[name]
    spoilt = _spoilt(small_plan(text, 4, **fields), spoiling, what)
    found = _first(spoilt.plan, crew_of(4))
    assert found.tensor == tensor
    assert found.axis == axis
    assert ratio is None or found.ratio == pytest.approx(ratio, rel=1e-3)
    assert found.line is not None
    assert found.line.line == line
    assert found.cause


@pytest.mark.slow
@pytest.mark.parametrize("text", [SEQUENCE, DATA, STORED, STAGES, SPREAD])
def test_finds_every_spoilt_sum(text: str, crew_of: Callable[[int], Crew]) -> None:
    """A sum that may be wrong unseen is a hole in the proof."""
    plan = small_plan(text, 4, **(EXPERTS if "experts" in text else LEARNED))
    for seed in range(6):
        for spoilt in spoil(plan, random.Random(seed)):
            assert verify(question(spoilt.plan), crew_of(4)).divergence is not None, spoilt.what
