"""Where samples lie in a stream of tokens.

A stream is every document's tokens, each followed by the boundary token. A sample is ``sequence`` inputs and, for
each, the token that comes next as its target. Two ways to cut:

- ``pack``: the stream is one text. Sample k starts at token ``k * sequence``; a sample may span documents.
  Every token but the first of the stream is a target exactly once per epoch.
- ``pad``: a sample stays inside one document. A long document gives several samples, one after the other; the
  last piece is shorter. Every token but the first of each document is a target exactly once; the boundary is
  the target of a document's last token. Empty documents give no sample.

Nothing is dropped: the last, shorter sample is filled up with targets that carry no weight.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.runtime.data.tokenizers import Tokens
from trimtab.spec import Packing

IGNORED = -100
"""The target that carries no weight: torch's ``ignore_index`` of cross entropy."""

EMPTY = -1
"""The id of a sample without tokens."""

_COUNTED_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Tokens of one side of the split.

    Args:
        tokens: All documents, a boundary after each.
        ends: For each document, the index behind its boundary. int64, increasing.
        boundary: The boundary token's id.
    """

    tokens: Tokens
    ends: NDArray[np.int64]
    boundary: int


class Pieces(Protocol):
    """Where samples begin in a stream and how long they are."""

    def __len__(self) -> int:
        """Number of samples."""

    def place(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each sample, the index of its first input and its number of valid targets (at least 1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedPieces:
    """Pieces of one text of ``num_tokens`` tokens, computed rather than stored."""

    num_tokens: int
    sequence: int

    def __len__(self) -> int:
        """Number of samples."""
        return -(-max(self.num_tokens - 1, 0) // self.sequence)

    def place(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Starts and lengths."""
        starts = sample_ids * self.sequence
        return starts, np.minimum(self.num_tokens - 1 - starts, self.sequence)


class PaddedPieces:
    """Pieces that stay inside documents."""

    def __init__(self, ends: NDArray[np.int64], sequence: int) -> None:
        """Cut documents that end (boundary included) at ``ends``."""
        begins = np.concatenate([np.zeros(1, np.int64), ends])
        num_targets = np.diff(begins) - 1
        num_pieces = -(-num_targets // sequence)
        documents = np.repeat(np.arange(len(ends)), num_pieces)
        piece = np.arange(len(documents)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
        self._starts = begins[documents] + piece * sequence
        self._lengths = np.minimum(num_targets[documents] - piece * sequence, sequence).astype(np.int32)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._starts)

    def place(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Starts and lengths."""
        return self._starts[sample_ids], self._lengths[sample_ids].astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Samples of a stream, to be taken in any order.

    Args:
        stream: Where the tokens are.
        sequence: Tokens in a sample.
        packing: How they were cut.
        pieces: Where the cuts are.
    """

    stream: Stream
    sequence: int
    packing: Packing
    pieces: Pieces

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.pieces)

    def take(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Inputs and targets, each ``[len(sample_ids), sequence]``; id ``EMPTY`` gives an empty sample.

        Behind a sample's length, inputs are the boundary token and targets are ``IGNORED``.
        """
        is_real = sample_ids != EMPTY
        offsets = np.arange(self.sequence)
        tokens = np.full((len(sample_ids), self.sequence), self.stream.boundary, np.int64)
        targets = np.full_like(tokens, IGNORED)
        starts, lengths = self.pieces.place(sample_ids[is_real])
        is_valid = offsets < lengths[:, None]
        # Places behind the end are clamped to the last target: they are read, then masked. Token types are
        # unsigned, so they are widened before the mask: IGNORED would wrap.
        places = starts[:, None] + np.minimum(offsets, lengths[:, None] - 1)
        inputs = self.stream.tokens[places].astype(np.int64)
        nexts = self.stream.tokens[places + 1].astype(np.int64)
        tokens[is_real] = np.where(is_valid, inputs, self.stream.boundary)
        targets[is_real] = np.where(is_valid, nexts, IGNORED)
        return tokens, targets

    def count_targets(self, vocab_size: int) -> NDArray[np.int64]:
        """How often each token is a valid target in one epoch, ``[vocab_size]``."""
        tokens, ends = self.stream.tokens, self.stream.ends
        counts = np.zeros(vocab_size, np.int64)
        for start in range(0, len(tokens), _COUNTED_AT_ONCE):
            counts += np.bincount(tokens[start : start + _COUNTED_AT_ONCE], minlength=vocab_size)
        # Every token is a target, except the first of each text that samples do not cross.
        firsts = np.concatenate([np.zeros(1, np.int64), ends])[: len(ends)]
        never = firsts if self.packing is Packing.PAD else firsts[:1]
        return counts - np.bincount(tokens[never], minlength=vocab_size)


def cut(stream: Stream, *, sequence: int, packing: Packing) -> Samples:
    """Cut a stream into samples of ``sequence`` tokens."""
    pieces: Pieces
    if packing is Packing.PACK:
        pieces = PackedPieces(num_tokens=len(stream.tokens), sequence=sequence)
    else:
        pieces = PaddedPieces(stream.ends, sequence)
    return Samples(stream=stream, sequence=sequence, packing=packing, pieces=pieces)
