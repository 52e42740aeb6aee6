"""A digest of bits: it sees every flip, wherever it is."""

import torch

from trimtab.runtime.bit_digests import _PIECE, bit_digest


def test_every_single_flip_is_seen() -> None:
    """One that is not seen is one that trains on."""
    values = torch.randn(1_000)
    known = bit_digest(values)
    for element in range(0, 1_000, 37):
        for bit in range(32):
            bits = values.view(torch.int32)
            mask = 1 << bit if bit < 31 else -(1 << 31)
            bits[element] ^= mask
            assert bit_digest(values) != known, (element, bit)
            bits[element] ^= mask
    assert bit_digest(values) == known


def test_places_count() -> None:
    """Two elements that were exchanged are other bits; so is a value beyond the first piece."""
    values = torch.arange(_PIECE + 10, dtype=torch.float32)
    known = bit_digest(values)
    swapped = values.clone()
    swapped[3], swapped[_PIECE + 4] = values[_PIECE + 4], values[3]
    assert bit_digest(swapped) != known


def test_zero_and_minus_zero_are_other_bits_and_nan_is_itself() -> None:
    """Comparing numbers instead of bits would call the first two equal and the last one different."""
    assert bit_digest(torch.tensor([0.0])) != bit_digest(torch.tensor([-0.0]))
    assert bit_digest(torch.tensor([float("nan")])) == bit_digest(torch.tensor([float("nan")]))
