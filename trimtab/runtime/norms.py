"""What is the norm of a gradient, whoever holds which piece of it?

Squares are added in fp64 within groups of 16 neighbours, in one fixed order. The sums of groups are then
added exactly: they are cut on a grid of powers of two into integers, whose sums do not round. So neither
the order of groups, nor where a vector is split between them, nor the number of threads can change a bit.
Binning after Demmel and Nguyen 2013 (Fast Reproducible Floating-Point Summation), with as many bins as it
takes to drop nothing.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

GROUP = 16
"""Elements that are always added together: a vector may be split at multiples of it, counted from its start."""

_BLOCK = {"cpu": 1 << 17, "cuda": 1 << 22}
"""Elements at a time: what stays in a core's cache, what fills an accelerator. No effect on the result."""

_QUANTUM = -298
"""Exponent of the smallest square: that of the smallest fp32 subnormal, 2^-149."""

_LIMB_BITS = 32
_NUM_LIMBS = 20  # groups below 2^260, at most 2^62 of them: 260 + 298 + 62 bits

_NAN_MARK = 1 << 32


@dataclass(frozen=True, kw_only=True, slots=True)
class BinnedSum:
    """An exact sum over groups of squares. Adding pieces in any order gives the same value.

    Args:
        quanta: The sum of the finite blocks, in units of 2^-298.
        nonfinite: inf or nan if the numbers held such, else 0.
    """

    quanta: int = 0
    nonfinite: float = 0.0

    def __add__(self, other: "BinnedSum") -> "BinnedSum":
        """The sum over both pieces."""
        return BinnedSum(quanta=self.quanta + other.quanta, nonfinite=self.nonfinite + other.nonfinite)

    def to_float(self) -> float:
        """The sum, rounded once; inf or nan if the numbers held such."""
        return self.nonfinite or self.quanta / (1 << -_QUANTUM)

    def to_limbs(self) -> list[int]:
        """The sum as 21 integers of at most 2^32, for an int64 all-reduce with SUM over up to 2^30 ranks."""
        mask = (1 << _LIMB_BITS) - 1
        limbs = [self.quanta >> (_LIMB_BITS * limb) & mask for limb in range(_NUM_LIMBS)]
        mark = _NAN_MARK if math.isnan(self.nonfinite) else int(math.isinf(self.nonfinite))
        return [*limbs, mark]

    @classmethod
    def from_limbs(cls, limbs: Sequence[int]) -> "BinnedSum":
        """The sum from its limbs, or from limbs that were added up over ranks."""
        *digits, mark = limbs
        quanta = sum(digit << (_LIMB_BITS * limb) for limb, digit in enumerate(digits))
        if mark >= _NAN_MARK:
            return cls(quanta=quanta, nonfinite=math.nan)
        return cls(quanta=quanta, nonfinite=math.inf if mark else 0.0)


def sum_of_squares(flat: Tensor) -> float:
    """The sum of squares of a contiguous fp32 vector; its relative error is below 1e-15.

    A vector that holds inf gives inf, one that holds nan gives nan.
    """
    return binned_sum_of_squares(flat).to_float()


def binned_sum_of_squares(flat: Tensor) -> BinnedSum:
    """The sum of squares of a contiguous fp32 vector, as a value to be added to that of other pieces."""
    assert flat.dtype is torch.float32, flat.dtype
    assert flat.dim() == 1, flat.shape
    flat = flat.detach()
    num_whole = flat.numel() // GROUP * GROUP
    total = BinnedSum()
    for piece in torch.split(flat[:num_whole], _BLOCK[flat.device.type]):
        total += _exact_sum(_group_sums(piece.view(-1, GROUP)))
    if num_whole < flat.numel():
        last = nn.functional.pad(flat[num_whole:], (0, num_whole + GROUP - flat.numel()))
        total += _exact_sum(_group_sums(last.view(1, GROUP)))
    return total


def _group_sums(groups: Tensor) -> Tensor:
    """The sum of squares of each row, halving the row until one number is left."""
    # One group a column, so that every addition runs over contiguous memory.
    columns = torch.empty((GROUP, groups.shape[0]), dtype=torch.float64, device=groups.device)
    columns.copy_(groups.t()).square_()
    half = GROUP // 2
    while half:
        columns[:half] += columns[half : 2 * half]
        half //= 2
    return columns[0]


def _exact_sum(numbers: Tensor) -> BinnedSum:
    """The sum of fp64 numbers from 0 up that are multiples of 2^-298; overwrites them."""
    if not numbers.numel():
        return BinnedSum()
    largest = numbers.amax().item()
    if not math.isfinite(largest):
        return BinnedSum(nonfinite=largest)
    # Factors below 2^50 stay in the low bits that _take_multiples reads; numel of them must fit an int64.
    fold_bits = min(50, 62 - numbers.numel().bit_length())
    exponent = math.frexp(largest)[1]
    quanta = 0
    # A rest is a multiple of 2^-298, whose square does not underflow; dot is the fastest look at it.
    while exponent > _QUANTUM and torch.dot(numbers, numbers).item() > 0.0:
        exponent = max(exponent - fold_bits, _QUANTUM)
        quanta += _take_multiples(numbers, exponent) << (exponent - _QUANTUM)
    return BinnedSum(quanta=quanta)


def _take_multiples(numbers: Tensor, exponent: int) -> int:
    """Round every number to a multiple of 2^exponent, subtract that, and return the sum of the factors.

    Adding 1.5 * 2^(52 + exponent) rounds to such multiples and leaves the factor in the low bits of the
    result, where an integer sum, wrapping modulo 2^64, collects it.
    """
    magic = math.ldexp(1.5, 52 + exponent)
    magic_bits = int.from_bytes(struct.pack("<d", magic), "little")
    rounded = numbers + magic
    wrapped = int(rounded.view(torch.int64).sum().item()) - magic_bits * numbers.numel()
    numbers -= rounded.sub_(magic)
    return (wrapped + (1 << 63)) % (1 << 64) - (1 << 63)
