"""Memory by class, against sums made by hand for a network of 4 layers.

gpt-3m: 4 layers of width 256 with 4 heads, an MLP of 1024, 256 tokens, a context of 512; LayerNorm, GELU, biases, tied
embedding. A microbatch of 2 samples of 128 tokens on each rank; everything in fp32 unless a test says otherwise.
"""

from dataclasses import replace

import pytest

from tests.plan.conftest import PlanOf
from trimtab.cost.counts import counts_of
from trimtab.cost.memory import MemoryCounter, Moment, RankMemory, num_leaves
from trimtab.plan.physical import Plan
from trimtab.terms import OnLoss

TOKENS = 2 * 128
"""Of a microbatch on one rank."""

R, H, M, V = TOKENS * 256 * 4, TOKENS * 256 * 4, TOKENS * 1024 * 4, TOKENS * 256 * 4
"""Bytes of a residual, of queries (or keys, or values), of an MLP's inside, of logits."""

LAYER = (
    R  # into the attention norm
    + R  # out of it, for the three products
    + 3 * H  # queries, keys, values
    + H  # out of attention, for its product
    + R  # into the MLP norm
    + R  # out of it, for the product
    + M  # before GELU
    + M  # after it, for the product
)
HEAD = R + R + V + TOKENS * 8  # into the norm, out of it, logits, targets
PARAMETERS = 3_356_160


def memory(plan: Plan, *, group: int = 0, leaves: int = 1) -> RankMemory:
    return MemoryCounter(plan, counts_of(plan), num_leaves=leaves).of(group)


@pytest.fixture
def whole(plan_of: PlanOf) -> RankMemory:
    return memory(plan_of("", microbatch=2))


def test_what_stays_between_steps(whole: RankMemory) -> None:
    """4 bytes for each parameter and gradient, 8 for Adam's two moments."""
    held = [table.device_bytes for table in whole.held]
    assert held == [4 * PARAMETERS, 4 * PARAMETERS, 8 * PARAMETERS]
    assert whole.host_bytes == 0


def test_activations_by_hand(whole: RankMemory) -> None:
    """Four layers, the head, and the tokens that the embedding's gradient needs."""
    kept = whole.moments[Moment.BACKWARD].activations
    assert kept == 4 * LAYER + HEAD + TOKENS * 8
    assert whole.moments[Moment.FORWARD].activations == kept
    assert whole.moments[Moment.UPDATE].activations == 0


def test_recompute_keeps_what_it_starts_from(plan_of: PlanOf) -> None:
    """Layers 0 to 3 keep their input and the two summands that are not computed again."""
    found = memory(plan_of("RECOMPUTE activations WHERE layer >= 0", microbatch=2))
    kept = found.moments[Moment.BACKWARD].activations
    assert kept < 4 * LAYER / 3
    # What was not kept lives for a moment, one layer at a time.
    assert found.moments[Moment.BACKWARD].working > LAYER - 2 * R


def test_tensor_parallelism_cuts_what_it_splits(plan_of: PlanOf, whole: RankMemory) -> None:
    """Heads and MLP halves; the residual stream stays whole."""
    text = "MESH dp 2, tp 2\nSPLIT heads, mlp, vocab OVER tp"
    kept = memory(plan_of(text, microbatch=2)).moments[Moment.BACKWARD].activations
    layer = R + R + 3 * H // 2 + H // 2 + R + R + M // 2 + M // 2
    head = (
        R + R + V // 2 + TOKENS * 8 + TOKENS * (1 + 2) * 4
    )  # and the maximum and the sums over the vocabulary
    assert kept == 4 * layer + head + TOKENS * 8
    sequence = f"{text}\nSPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp"
    assert memory(plan_of(sequence, microbatch=2)).moments[Moment.BACKWARD].activations < kept


def test_stored_parameters_are_gathered_two_blocks_at_a_time(plan_of: PlanOf) -> None:
    """The block in use and the next: the largest are two layers."""
    plan = plan_of("STORE params, grads, states OVER dp", microbatch=2)
    layer = sum(_numel(parameter.shape) for parameter in plan.parameters.values() if parameter.layer == 0)
    found = memory(plan)
    assert found.moments[Moment.FORWARD].gathered == 2 * layer * 4
    assert found.moments[Moment.UPDATE].gathered == 0
    # Its gradient is whole until it is scattered.
    assert found.moments[Moment.BACKWARD].working >= layer * 4


def test_weights_in_another_type_are_copied(plan_of: PlanOf) -> None:
    """Matrices that are kept in fp32 and used in bf16 cost two bytes more; vectors and lookups do not."""
    plan = plan_of("", microbatch=2, compute="bf16")
    matrices = sum(
        _numel(parameter.shape)
        for parameter in plan.parameters.values()
        if len(parameter.shape) == 2 and parameter.layer is not None
    )
    assert memory(plan).moments[Moment.FORWARD].gathered == 2 * matrices
    kept_so = memory(plan_of("KEEP params IN bf16", microbatch=2, compute="bf16"))
    assert kept_so.moments[Moment.FORWARD].gathered == 0


def test_logits_are_once_more_in_fp32(plan_of: PlanOf) -> None:
    """They are the peak where the vocabulary is large: a loss in bf16 would lose its sums."""
    small = memory(plan_of("", microbatch=2, compute="bf16"))
    large = memory(plan_of("", microbatch=2, compute="bf16", vocab=50257))
    logits = TOKENS * 50257
    backward = large.moments[Moment.BACKWARD].working
    assert backward >= logits * (4 + 2)  # the fp32 copy and the gradient
    assert backward > small.moments[Moment.BACKWARD].working


def test_what_is_offloaded_waits_in_the_host(plan_of: PlanOf) -> None:
    """States and activations leave the device, and come back for their moment."""
    text = "OFFLOAD states TO host\nOFFLOAD activations WHERE kind = 'linear' TO host"
    found = memory(plan_of(text, microbatch=2))
    assert [table.host_bytes for table in found.held] == [0, 0, 8 * PARAMETERS]
    assert found.host_bytes == 8 * PARAMETERS + 4 * 2 * M
    assert found.moments[Moment.BACKWARD].activations == 4 * (LAYER - 2 * M) + HEAD + TOKENS * 8


def test_the_first_stage_holds_most_microbatches(plan_of: PlanOf) -> None:
    """Under 1F1B stage s keeps as many microbatches as stages follow it, and itself."""
    plan = plan_of("MESH pp 4\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 8", batch=16)
    kept = [memory(plan, group=group).moments[Moment.BACKWARD].activations for group in range(4)]
    layer = LAYER
    assert kept == [4 * (layer + TOKENS * 8), 3 * layer, 2 * layer, layer + HEAD]


def test_shares_keep_the_gradients_that_are_open(plan_of: PlanOf) -> None:
    """exact keeps a leaf for each share; otherwise the tree is folded as it grows; without shares there is one."""
    plan = plan_of("", shares=32, microbatch=1)
    assert num_leaves(plan, OnLoss.EXACT) == 8
    assert num_leaves(plan, OnLoss.REDO) == 4
    assert num_leaves(plan_of("", microbatch=1), OnLoss.SAME_BATCH) == 1
    one, eight = memory(plan), memory(plan, leaves=8)
    grown = eight.moments[Moment.UPDATE].gradients - one.moments[Moment.UPDATE].gradients
    assert grown == 7 * 4 * PARAMETERS


def test_pieces_of_the_update(plan_of: PlanOf) -> None:
    """ZeRO-1 needs the piece of the gradient and of the parameter that it works on, besides the whole ones."""
    plan = plan_of("STORE states OVER dp")
    piece = sum(-(-_numel(parameter.shape) // 64) * 16 for parameter in plan.parameters.values())
    assert memory(plan).moments[Moment.UPDATE].working == 2 * 4 * piece


def test_buffers_hold_what_is_converted(plan_of: PlanOf) -> None:
    """A sum in bf16 of gradients in fp32 travels in a copy of half the size; one in fp32 in none."""
    assert memory(plan_of("REDUCE grads OVER dp IN bf16")).moments[Moment.UPDATE].buffers == 2 * PARAMETERS
    assert memory(plan_of("REDUCE grads OVER dp")).moments[Moment.UPDATE].buffers == 0


def test_the_peak_is_the_largest_moment(whole: RankMemory) -> None:
    """A figure that is not the peak lets a run die in the backward pass."""
    assert whole.peak is Moment.BACKWARD
    assert whole.peak_bytes == max(classes.total for classes in whole.moments.values())
    less = {moment: replace(classes, working=0) for moment, classes in whole.moments.items()}
    assert replace(whole, moments=less).peak is Moment.FORWARD


def _numel(shape: tuple[int, ...]) -> int:
    found = 1
    for length in shape:
        found *= length
    return found
