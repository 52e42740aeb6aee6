"""Which random numbers belong to a piece of work?

A draw is keyed by what is computed, never by who computes it or what ran before: (seed, step, share,
microbatch, layer, call). Any rank that recomputes a microbatch draws the same numbers.
"""

import hashlib
import struct
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

EMBEDDING_LAYER = -1
"""The layer of draws that belong to no numbered layer: what follows the embedding."""

_GLOBAL_LAYER = -2
"""Seeds torch's global generators, which a user's own modules draw from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomKey:
    """Names one draw. Two keys that differ in any field give unrelated numbers."""

    seed: int
    step: int
    share: int
    microbatch: int
    layer: int
    call: int

    def to_int(self) -> int:
        """The key as 63 bits, the same in every process and on every platform.

        Torch's CPU generator keeps the low 32 bits of a seed, so two given keys meet there with
        probability 2^-32.
        """
        packed = struct.pack("<6q", self.seed, self.step, self.share, self.microbatch, self.layer, self.call)
        return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


class KeyedRandom:
    """Generators for the microbatch that this process is computing; one per process, one thread.

    Args:
        device: Where the numbers are drawn. Kinds of device draw different numbers for one key.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._generator = torch.Generator(torch.device(device))
        self._microbatch = RandomKey(seed=0, step=0, share=0, microbatch=0, layer=0, call=0)
        self._calls: Counter[int] = Counter()

    def start_microbatch(self, *, seed: int, step: int, share: int, microbatch: int) -> None:
        """Begin a microbatch: draws from here on are its own. Calling it again repeats them.

        Also seeds torch's global generators (CPU and, on CUDA, the current device), so that a module that
        knows nothing of keys, such as ``nn.Dropout``, repeats too.
        """
        self._microbatch = RandomKey(
            seed=seed, step=step, share=share, microbatch=microbatch, layer=_GLOBAL_LAYER, call=0
        )
        self._calls.clear()
        # Not torch.manual_seed: with no accelerator it spends 75 us on formatting a stack for lazy CUDA seeding.
        torch.default_generator.manual_seed(self._microbatch.to_int())
        if self._generator.device.type == "cuda":
            torch.cuda.manual_seed(self._microbatch.to_int())

    def generator(self, layer: int) -> torch.Generator:
        """A generator for the next draw of ``layer``; good until the next call of this method.

        The n-th call for a layer within a microbatch gets call number n.
        """
        microbatch = self._microbatch
        key = RandomKey(
            seed=microbatch.seed,
            step=microbatch.step,
            share=microbatch.share,
            microbatch=microbatch.microbatch,
            layer=layer,
            call=self._calls[layer],
        )
        self._calls[layer] += 1
        self._generator.manual_seed(key.to_int())
        return self._generator


def draw_mask(mask: Tensor, p: float, generator: torch.Generator) -> Tensor:
    """``mask``, filled with 0 at probability ``p`` and with 1 / (1 - p) elsewhere."""
    return mask.bernoulli_(1.0 - p, generator=generator).div_(1.0 - p)


class KeyedDropout(nn.Module):
    """Dropout whose mask is keyed; the identity in evaluation and at probability 0.

    Args:
        p: Probability of zeroing an element; the rest is scaled by 1 / (1 - p).
        layer: The layer part of the key.
        keyed: Where the mask's generator comes from.
    """

    def __init__(self, p: float, layer: int, keyed: KeyedRandom) -> None:
        super().__init__()
        assert 0.0 <= p < 1.0, p
        self.p = p
        self.layer = layer
        self._keyed = keyed

    def forward(self, x: Tensor) -> Tensor:
        """``x`` with elements dropped; same shape and type."""
        if self.p == 0.0 or not self.training:
            return x
        generator = self._keyed.generator(self.layer)
        return x * draw_mask(torch.empty_like(x), self.p, generator)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"p={self.p}, layer={self.layer}"
