"""Are tensors that were cut into pieces the same when they are put together again, whatever their sizes?"""

import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.runtime.stored.cuts import Cut

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=5)


@given(SHAPES, st.integers(1, 5))
def test_pieces_make_the_tensors_again(shapes, num_ranks) -> None:
    """Pieces begin at multiples of 16 elements; what is padded is zero."""
    named = {str(number): shape for number, shape in enumerate(shapes)}
    cut = Cut(named, num_ranks, torch.device("cpu"))
    generator = torch.Generator().manual_seed(len(shapes))
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in named.items()}
    rows = cut.rows(tensors)
    assert rows.shape == (num_ranks, cut.length)
    full = torch.full((num_ranks * cut.length,), float("nan"))
    cut.fill({name: cut.padded(full, name) for name in cut.names}, rows)
    for name, tensor in tensors.items():
        assert cut.whole(full, name).equal(tensor)
        assert not cut.padded(full, name)[tensor.numel() :].any()
    for place in range(num_ranks):
        pieces = {name: cut.own(full, name, place) for name in cut.names}
        assert cut.row(pieces).equal(rows[place])
        assert all(cut.piece(rows[place], name).equal(piece) for name, piece in pieces.items())
        assert all(piece.numel() % 16 == 0 for piece in pieces.values())


def test_a_gradient_that_is_missing_counts_as_zeros() -> None:
    """Of a layer that the samples of this rank did not use."""
    cut = Cut({"a": (3,), "b": (40,)}, 2, torch.device("cpu"))
    rows = cut.rows({"a": None, "b": torch.ones(40)})
    assert rows.sum() == 40
    assert not cut.piece(rows[0], "a").any()
