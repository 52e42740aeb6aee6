"""A rank reads its own piece of a tensor, and nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.runtime.lowering.small_plans import EXPERTS, LEARNED, ROTARY, Named, small_plan
from trimtab.catalog.hugging_face import Box
from trimtab.runtime.lowering import Rank, Rules, Wires
from trimtab.runtime.lowering.extents import Extent, Run, take
from trimtab.runtime.lowering.loading import read_piece
from trimtab.runtime.optimizers import Sgd


class OneTensor:
    """Weights of one tensor; counts the elements that it is asked for."""

    def __init__(self, whole: Tensor) -> None:
        self.whole, self.num_read = whole, 0

    def read(self, name: str, box: Box | None = None, *, dtype: torch.dtype = torch.float32) -> Tensor:
        assert box is not None
        found = self.whole[tuple(slice(*ends) for ends in box)].to(dtype, copy=True)
        self.num_read += found.numel()
        return found


@st.composite
def extents(draw: st.DrawFn) -> tuple[tuple[int, ...], Extent]:
    """A shape, and a piece of it: dims cut into pieces, perhaps storage of the piece again, padding included."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    runs = [Run(0, length, length) for length in shape]
    for dim in range(len(shape)):
        pieces = draw(st.integers(1, 4))
        runs[dim] = runs[dim].cut(pieces, draw(st.integers(0, pieces - 1)))
    extent = Extent(tuple(runs))
    for _ in range(draw(st.integers(0, 2))):
        pieces = draw(st.integers(1, 4))
        extent = Extent(extent.dims, extent.flat.cut_storage(pieces, draw(st.integers(0, pieces - 1))))
    return shape, extent


@given(extents())
def test_a_piece_is_what_the_whole_would_give(drawn: tuple[tuple[int, ...], Extent]) -> None:
    """And of the files only that is read, however storage is cut."""
    shape, extent = drawn
    whole = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    weights = OneTensor(whole)
    piece = read_piece(weights, "any", extent)
    assert torch.equal(piece, take(whole, extent))
    assert weights.num_read == int((piece != 0).sum())


@pytest.mark.parametrize("fields", [LEARNED, ROTARY, EXPERTS])
def test_a_rank_may_begin_with_given_weights(fields: dict[str, object]) -> None:
    """Fine-tuning under any plan begins where the files end."""
    plan = small_plan("", 1, batch=2, **fields)
    given = {name: torch.randn(parameter.shape) for name, parameter in plan.parameters.items()}
    rules = Rules(optimizer=Sgd(lr=0.5), learning_rate=lambda _: 0.5, clip=None)
    rank = Rank(plan, 0, Wires(0, 1), rules, seed=5, weights=Named(given))
    assert rank.stored.keys() == given.keys()
    assert all(torch.equal(rank.stored[name], tensor) for name, tensor in given.items())
