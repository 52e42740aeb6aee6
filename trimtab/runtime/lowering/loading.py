"""A rank's piece of a tensor in boxes of the whole one: how files are read and written without the rest of it."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trimtab.catalog.hugging_face import Box, boxes_of_run
from trimtab.runtime.lowering.extents import Extent
from trimtab.runtime.weights.reading import Weights


def read_piece(weights: Weights, name: str, extent: Extent) -> Tensor:
    """What ``extents.take`` gives of the whole tensor, fp32, its padding zero; only what the piece holds is read."""
    piece = torch.zeros(extent.shape)
    for view, box in boxes(piece, extent):
        view.copy_(weights.read(name, box))
    return piece


def boxes(piece: Tensor, extent: Extent) -> Iterator[tuple[Tensor, Box]]:
    """What a piece holds, without its padding: views of it, and which indices of the whole tensor each has."""
    for view, box in _views(piece, extent):
        # What lies behind the real indices of a dim is padding.
        real = [(first, min(last, run.real)) for (first, last), run in zip(box, extent.dims, strict=True)]
        if all(first < last for first, last in real):
            starts = [run.start for run in extent.dims]
            there = tuple(
                (start + first, start + last) for start, (first, last) in zip(starts, real, strict=True)
            )
            yield view[tuple(slice(0, last - first) for first, last in real)], there


def _views(piece: Tensor, extent: Extent) -> Iterator[tuple[Tensor, Box]]:
    """A piece in boxes, their indices counted from where the rank's part of each dim begins."""
    if extent.stored is None:
        yield piece, _whole(extent.cut_shape)
        return
    run, start = extent.stored, 0
    for box in boxes_of_run(extent.cut_shape, run.start, run.start + run.real):
        shape = torch.Size([last - first for first, last in box])
        yield piece[start : start + shape.numel()].view(shape), box
        start += shape.numel()


def _whole(shape: Sequence[int]) -> Box:
    return tuple((0, length) for length in shape)
