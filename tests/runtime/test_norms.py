import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.runtime.norms import GROUP, BinnedSum, binned_sum_of_squares, sum_of_squares


def spread_vector(seed: int, num_groups: int, spread: float) -> torch.Tensor:
    """Numbers over many orders of magnitude, where a sum that rounds depends on its order."""
    generator = torch.Generator().manual_seed(seed)
    magnitudes = torch.exp(spread * torch.randn(num_groups * GROUP, generator=generator))
    return torch.randn(num_groups * GROUP, generator=generator) * magnitudes


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    num_groups=st.integers(1, 400),
    spread=st.floats(0, 14),
    cuts=st.lists(st.integers(0, 400), max_size=5),
)
def test_no_order_and_no_split_changes_a_bit(seed, num_groups, spread, cuts):
    """Another number of ranks would clip by another norm, and the weights would part."""
    flat = spread_vector(seed, num_groups, spread)
    whole = binned_sum_of_squares(flat)
    order = random.Random(seed).sample(range(num_groups), num_groups)
    assert binned_sum_of_squares(flat.view(-1, GROUP)[order].flatten()) == whole
    bounds = [0, *sorted(min(cut, num_groups) for cut in cuts), num_groups]
    pieces = [
        binned_sum_of_squares(flat[start * GROUP : end * GROUP]) for start, end in itertools.pairwise(bounds)
    ]
    random.Random(seed).shuffle(pieces)
    assert sum(pieces, BinnedSum()) == whole


def test_blocks_and_threads_do_not_change_a_bit():
    """A vector longer than one block, on two threads, must give what its pieces give."""
    flat = spread_vector(0, 20_000, 6.0)
    whole = binned_sum_of_squares(flat)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert binned_sum_of_squares(flat) == whole
    finally:
        torch.set_num_threads(threads)
    assert sum(map(binned_sum_of_squares, flat.split(GROUP * 777)), BinnedSum()) == whole


@pytest.mark.parametrize("spread", [0.0, 3.0, 12.0])
@pytest.mark.parametrize("numel", [1, 15, 16, 17, 50_000])
def test_the_sum_is_that_of_fsum(spread, numel):
    """An inaccurate norm clips too much or too little."""
    flat = spread_vector(1, 4000, spread)[:numel]
    assert sum_of_squares(flat) == pytest.approx(
        math.fsum(x * x for x in flat.double().tolist()), rel=1e-15, abs=0.0
    )


@pytest.mark.parametrize("scale", [2.0**-149, 1e-30, 1e30, 3e38])
def test_squares_neither_overflow_nor_vanish(scale):
    """fp32 squares of small gradients are zero and those of large ones inf; the norm must be neither."""
    flat = torch.full((160,), scale, dtype=torch.float32)
    assert sum_of_squares(flat) == pytest.approx(160 * flat[0].double().item() ** 2, rel=1e-15, abs=0.0)


@pytest.mark.parametrize(
    ("bad", "expected"), [([math.inf], math.inf), ([-math.inf], math.inf), ([math.inf, math.nan], math.nan)]
)
@pytest.mark.parametrize("place", [0, 39])
def test_what_is_not_finite_stays_visible(bad, expected, place):
    """A hidden nan would be applied to the weights."""
    flat = torch.ones(100)
    flat[place : place + len(bad)] = torch.tensor(bad)
    total = binned_sum_of_squares(torch.ones(16)) + binned_sum_of_squares(flat)
    for value in (total, BinnedSum.from_limbs(total.to_limbs())):
        assert value.to_float() == pytest.approx(expected, nan_ok=True)


def test_nothing_and_zeros_are_zero():
    """A rank that owns no element takes part in the norm too."""
    assert sum_of_squares(torch.empty(0)) == 0.0
    assert sum_of_squares(torch.zeros(40)) == 0.0


def test_limbs_added_over_ranks_give_the_sum():
    """Ranks add limbs in an integer all-reduce: a carry lost there changes the norm."""
    pieces = [binned_sum_of_squares(spread_vector(seed, 50, 10.0)) for seed in range(9)]
    limbs = torch.tensor([piece.to_limbs() for piece in pieces], dtype=torch.int64).sum(0)
    assert BinnedSum.from_limbs(limbs.tolist()) == sum(pieces, BinnedSum())
