"""A short name of the exact bits of a vector, computed where it lies."""

import torch
from torch import Tensor

_PIECE = 1 << 20
"""Elements at once: what is needed besides the vector stays small."""
_MIX = 0x9E3779B97F4A7C15 - (1 << 64)
"""Odd, so that no flipped bit is multiplied away; the golden ratio in 64 bits, which spreads neighbours."""


def bit_digest(values: Tensor) -> int:
    """64 bits, signed, that differ wherever a single element differs, and nearly always where several do.

    The sum of each element's bits times an odd number of its place, modulo 2^64: an order of addition that does not matter.

    Args:
        values: One dimension, fp32, contiguous.
    """
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    bits = values.view(torch.int32)
    for begin in range(0, len(bits), _PIECE):
        piece = bits[begin : begin + _PIECE].to(torch.int64)
        places = torch.arange(begin, begin + len(piece), dtype=torch.int64, device=values.device)
        total += (piece * ((places * 2 + 1) * _MIX)).sum()
    return int(total.item())
