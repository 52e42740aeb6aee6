"""Do ranks that hold parts of an activation zero what one device zeroes?"""

import pytest
import torch
from torch import Tensor

from trimtab.plan.physical import Work
from trimtab.runtime.lowering.extents import Extent, Run, take
from trimtab.runtime.lowering.masks import Masks
from trimtab.runtime.random_keys import EMBEDDING_LAYER, KeyedDropout, KeyedRandom

SEED, P, STEP = 5, 0.3, 4
WORK = Work(
    batch=12,
    sequence=6,
    replicas=2,
    num_parts=3,
    has_fixed_order=True,
    microbatch=2,
    microbatches_per_part=2,
)
"""Three shares of two microbatches on two replicas: the second one has one share."""
SHAPE = (4, 6, 8)


def _drawn(masks: Masks, extent: Extent, *, microbatch: int, layer: int | None = 1, call: int = 1) -> Tensor:
    piece = torch.zeros(extent.shape)
    return masks.draw(piece, extent, SHAPE, step=STEP, microbatch=microbatch, layer=layer, call=call)


def _of_decoder(*, share: int, microbatch: int, layer: int = 1, call: int = 1) -> Tensor:
    """What the decoder multiplies a replica's activation with."""
    keyed = KeyedRandom()
    dropout = KeyedDropout(P, layer, keyed)
    keyed.start_microbatch(seed=SEED, step=STEP, share=share, microbatch=microbatch)
    found = [dropout(torch.ones(2, *SHAPE[1:])) for _ in range(call + 1)]
    return found[-1]


def _rows(first: int, count: int) -> Extent:
    return Extent((Run(first, count, count), Run(0, 6, 6), Run(0, 8, 8)))


def test_masks_are_those_of_the_decoder() -> None:
    """Other masks would be another run: a layout would change the weights."""
    masks = Masks(WORK, P, seed=SEED)
    for microbatch, share in ((0, 0), (1, 0), (2, 1), (3, 1)):
        found = _drawn(masks, _rows(0, 2), microbatch=microbatch)
        assert torch.equal(found, _of_decoder(share=share, microbatch=microbatch % 2))
    assert torch.equal(_drawn(masks, _rows(2, 2), microbatch=1), _of_decoder(share=2, microbatch=1))
    embedding = _of_decoder(share=0, microbatch=0, layer=EMBEDDING_LAYER, call=0)
    assert torch.equal(_drawn(masks, _rows(0, 2), microbatch=0, layer=None, call=0), embedding)


@pytest.mark.parametrize(
    "extent",
    [
        Extent((Run(0, 2, 2), Run(3, 3, 3), Run(0, 8, 8))),
        Extent((Run(2, 2, 2), Run(0, 6, 6), Run(4, 4, 4))),
        Extent((Run(2, 1, 1), Run(2, 2, 2), Run(4, 2, 2))),
        Extent((Run(0, 2, 2), Run(4, 2, 4), Run(0, 8, 8))),
        Extent((Run(1, 2, 2), Run(0, 6, 6), Run(0, 8, 8))),
    ],
    ids=["sequence", "columns", "all three", "padded", "over replicas"],
)
def test_a_part_is_that_of_the_whole(extent: Extent) -> None:
    """A rank that draws a mask of its own part drops other elements than its neighbours expect."""
    masks = Masks(WORK, P, seed=SEED)
    whole = _drawn(masks, _rows(0, 4), microbatch=1)
    assert torch.equal(_drawn(masks, extent, microbatch=1), take(whole, extent))


def test_a_device_may_compute_rows_of_others() -> None:
    """One device that stands for the second replica sees its rows first, and draws the masks of its shares."""
    masks = Masks(WORK, P, seed=SEED, rows=[2, 3])
    assert torch.equal(_drawn(masks, _rows(0, 2), microbatch=0), _of_decoder(share=2, microbatch=0))


def test_rows_without_a_share_are_left_alone() -> None:
    """They predict nothing; there is no key for them."""
    masks = Masks(WORK, P, seed=SEED)
    assert bool((_drawn(masks, _rows(2, 2), microbatch=2) == 1.0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_type_does_not_choose_the_elements(dtype: torch.dtype) -> None:
    """Under bf16 the same elements are dropped, and the gradient in fp32 meets the mask of the activation."""
    masks, extent = Masks(WORK, P, seed=SEED), _rows(0, 2)
    found = masks.draw(
        torch.zeros(extent.shape, dtype=dtype), extent, SHAPE, step=STEP, microbatch=0, layer=1, call=1
    )
    assert torch.equal(found == 0, _of_decoder(share=0, microbatch=0) == 0)
    assert found.dtype is dtype
