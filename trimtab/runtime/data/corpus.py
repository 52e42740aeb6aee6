"""Text, ready to train on: from what the job file says to batches of token ids."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.runtime.data.cache import TOKENIZER_FILE, OnProgress, OnWait, Recipe, open_cache
from trimtab.runtime.data.documents import find_documents
from trimtab.runtime.data.errors import DataError
from trimtab.runtime.data.packing import EMPTY, IGNORED, Samples, cut
from trimtab.runtime.data.samples import SampleIndex, permutation
from trimtab.runtime.data.tokenizers import choose_tokenizer
from trimtab.spec import Packing

# Keeps the order of evaluation apart from the order of training.
_HELD_OUT_EPOCH = 2**32

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Inputs and targets, each int64 ``[samples, sequence]``; a target of ``IGNORED`` carries no weight."""


class Corpus:
    """Batches of a corpus, by position.

    It has no state that moves: the same question gives the same answer, in any order, on any rank. Evaluation and
    training cannot disturb each other.
    """

    def __init__(self, *, train: Samples, held_out: Samples, vocab_size: int, seed: int, digest: str) -> None:
        """Made by ``open_corpus``."""
        self.index = SampleIndex(len(train), seed)
        self.vocab_size = vocab_size
        self.digest = digest
        """Hash of tokens, split, cut and order: equal digests give equal batches."""
        self._train = train
        self._held_out = held_out
        # Shuffled once and for all, so that an evaluation of the first few batches sees the whole corpus.
        self._held_out_order = permutation(len(held_out), seed=seed, epoch=_HELD_OUT_EPOCH)

    @property
    def num_samples(self) -> int:
        """Training samples in an epoch."""
        return len(self._train)

    @property
    def num_held_out(self) -> int:
        """Held-out samples."""
        return len(self._held_out)

    @property
    def num_train_tokens(self) -> int:
        """Tokens of the training documents, boundaries included."""
        return len(self._train.stream.tokens)

    @property
    def num_held_out_tokens(self) -> int:
        """Tokens of the held-out documents, boundaries included."""
        return len(self._held_out.stream.tokens)

    def batch(self, start: int, count: int, limit: int | None = None) -> Batch:
        """Training samples at positions ``[start, start + count)`` of the run.

        Args:
            start: First position; ``step * batch`` plus a share's offset.
            count: Number of samples.
            limit: Positions in the run (``index.num_positions(epochs)``); samples at and behind it are empty.
        """
        return self._train.take(self.index.sample_ids(start, count, limit))

    def held_out_batch(self, start: int, count: int) -> Batch:
        """Held-out samples ``[start, start + count)`` in evaluation's fixed order; empty behind the last."""
        ids = np.full(count, EMPTY, np.int64)
        real = self._held_out_order[start : start + count]
        ids[: len(real)] = real
        return self._held_out.take(ids)

    def held_out_batches(self, batch: int) -> Iterator[Batch]:
        """All held-out samples, each exactly once, in the same order each time; the last batch has empty samples."""
        return (self.held_out_batch(start, batch) for start in range(0, self.num_held_out, batch))

    def held_out_entropy(self) -> float | None:
        """Entropy of the held-out targets' token frequencies, in nats a token; None if nothing is held out.

        The loss of the best model that ignores context: a run that does not get below it has learned frequencies.
        """
        return _entropy(self._held_out.count_targets(self.vocab_size)) if self.num_held_out else None


def open_corpus(
    *,
    text: str | Sequence[str],
    field: str,
    tokenizer: str | Mapping[str, Any],
    sequence: int,
    held_out: float,
    packing: str,
    seed: int,
    cache_folder: str | Path,
    on_progress: OnProgress | None = None,
    on_wait: OnWait | None = None,
) -> Corpus:
    """Open a corpus; its tokens come from the cache, or are put there first.

    Called once by every rank; paths are relative to the working directory.

    Args:
        text: ``python-stdlib``, a file, a folder, a glob, or a list of these.
        field: Key or column of the text in ``.jsonl`` and ``.parquet``.
        tokenizer: ``bytes``, a path to ``tokenizer.json``, or ``{"bpe": {"vocab": N}}``.
        sequence: Tokens in a sample.
        held_out: Fraction of documents to hold out; 0 holds out none.
        packing: ``pack`` or ``pad``.
        seed: Decides the split and the order.
        cache_folder: Where caches are kept; may stand inside ``text``, of which it is no part.
        on_progress: Called while this process builds the cache.
        on_wait: Called with the seconds waited while another process builds it.

    Raises: DataError if the text, the tokenizer or the folder cannot be used, or a side has no sample.
    """
    if sequence < 1:
        raise DataError(f"data.sequence: a sample holds at least 1 token, not {sequence}")
    if packing not in list(Packing):
        raise DataError(f"data.packing: {packing!r} is not one of {', '.join(Packing)}")
    recipe = _recipe(text, field, tokenizer, held_out, seed, Path(cache_folder))
    cached = open_cache(Path(cache_folder), recipe, on_progress=on_progress, on_wait=on_wait)
    train = cut(cached.train, sequence=sequence, packing=Packing(packing))
    held = cut(cached.held_out, sequence=sequence, packing=Packing(packing))
    for side, samples, needed in (("train on", train, True), ("hold out", held, held_out > 0)):
        if needed and not len(samples):
            raise DataError(f"data.text: the documents to {side} hold no text")
    values = json.dumps([cached.digest, sequence, packing, seed])
    digest = hashlib.sha256(values.encode()).hexdigest()
    return Corpus(train=train, held_out=held, vocab_size=cached.vocab_size, seed=seed, digest=digest)


def cached_tokenizer(
    *,
    text: str | Sequence[str],
    field: str,
    tokenizer: str | Mapping[str, Any],
    held_out: float,
    seed: int,
    cache_folder: str | Path,
) -> Path | None:
    """The ``tokenizer.json`` that stands beside the tokens of a corpus; None where there is none, or no cache of it.

    Arguments are those of ``open_corpus``; nothing is built.

    Raises: DataError if the text or the tokenizer cannot be used.
    """
    recipe = _recipe(text, field, tokenizer, held_out, seed, Path(cache_folder))
    path = Path(cache_folder) / recipe.key() / TOKENIZER_FILE
    return path if path.is_file() else None


def _recipe(
    text: str | Sequence[str],
    field: str,
    tokenizer: str | Mapping[str, Any],
    held_out: float,
    seed: int,
    cache_folder: Path,
) -> Recipe:
    return Recipe(
        documents=find_documents(text, field=field, leave_out=cache_folder),
        tokenizer=choose_tokenizer(tokenizer),
        held_out=held_out,
        seed=seed,
    )


def unigram_entropy(targets: NDArray[np.int64]) -> float:
    """Entropy of the token frequencies among valid targets, in nats a token; 0 if there are none."""
    valid = targets[targets != IGNORED]
    return _entropy(np.bincount(valid))


def _entropy(counts: NDArray[np.int64]) -> float:
    seen = counts[counts > 0]
    if not len(seen):
        return 0.0
    frequencies = seen / seen.sum()
    return float(-(frequencies * np.log(frequencies)).sum()) + 0.0
