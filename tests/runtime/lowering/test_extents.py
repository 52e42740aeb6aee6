"""Does every rank hold the elements that its layout says, and do pieces make the whole again?"""

import pytest
import torch

from trimtab.plan.placements import STORED, Placements, split
from trimtab.runtime.lowering.extents import Extent, Layouts, Run, assemble, cut, take
from trimtab.spec import Mesh

MESH = Mesh(axes=(("a", 2), ("b", 3)))
DIMS = ("rows", "columns")

LAYOUTS = {
    "replicated": Placements(),
    "uneven rows": Placements((("a", split("rows")),)),
    "rows over both axes": Placements((("b", split("rows")), ("a", split("rows")))),
    "rows and columns": Placements((("a", split("columns")), ("b", split("rows")))),
    "stored": Placements((("a", STORED),)),
    "stored over both axes": Placements((("b", STORED), ("a", STORED))),
    "stored inside rows": Placements((("a", split("rows")), ("b", STORED))),
}


def extents(placements: Placements, shape: tuple[int, int]) -> list[Extent]:
    layouts = Layouts(MESH)
    return [layouts.extent(DIMS, shape, placements, rank) for rank in range(6)]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("shape", [(7, 11), (2, 3), (40, 6)])
def test_pieces_make_the_whole(name: str, shape: tuple[int, int]) -> None:
    """An element that two ranks lack, or that lands elsewhere, would be lost without an error."""
    whole = torch.arange(1.0, 1.0 + shape[0] * shape[1]).view(shape)
    found = extents(LAYOUTS[name], shape)
    pieces = [(take(whole, extent), extent) for extent in found]
    for piece, extent in pieces:
        assert piece.shape == extent.shape
        assert piece.is_contiguous()
    flat_dims = found[0].dims if all(extent.dims == found[0].dims for extent in found) else None
    if flat_dims is not None:
        assert torch.equal(assemble(pieces, Extent(flat_dims)), take(whole, Extent(flat_dims)))
    elif all(extent.stored is None for extent in found):
        target = Extent(tuple(Run(0, length, length) for length in shape))
        assert torch.equal(assemble(pieces, target), whole)


@pytest.mark.parametrize("name", LAYOUTS)
def test_cutting_a_piece_is_taking_it(name: str) -> None:
    """A rank that holds everything and one that holds its piece must agree on the piece."""
    whole = torch.rand(7, 11)
    everything = Extent((Run(0, 7, 7), Run(0, 11, 11)))
    for extent in extents(LAYOUTS[name], (7, 11)):
        if extent.stored is None or extent.dims == everything.dims:
            assert torch.equal(cut(whole, everything, extent), take(whole, extent))


def test_padding_is_zero() -> None:
    """Rubbish in padded rows of a vocabulary would reach the loss."""
    extent = extents(LAYOUTS["rows over both axes"], (2, 3))[5]
    assert (extent.dims[0].real, extent.dims[0].length) == (0, 1)
    assert take(torch.ones(2, 3), extent).tolist() == [[0.0, 0.0, 0.0]]
