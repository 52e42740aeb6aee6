import json
import math
import subprocess
import sys

import numpy as np
import pytest

from trimtab.runtime.data import IGNORED, DataError, open_corpus, unigram_entropy


@pytest.fixture
def lines(tmp_path):
    """A .jsonl of 300 documents of different lengths."""
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {i} " * (i % 7 + 1)}) + "\n" for i in range(300)))
    return path


@pytest.fixture
def opened(lines, tmp_path):
    def open_lines(**changes):
        settings = {
            "text": str(lines),
            "field": "text",
            "tokenizer": "bytes",
            "sequence": 16,
            "held_out": 0.2,
            "packing": "pack",
            "seed": 0,
            "cache_folder": tmp_path / "cache",
        }
        return open_corpus(**(settings | changes))

    return open_lines


def valid(batches):
    return sum(int((targets != IGNORED).sum()) for _, targets in batches)


@pytest.mark.parametrize("packing", ["pack", "pad"])
def test_tokens_used_in_an_epoch_are_the_tokens_of_the_data(opened, packing):
    """Dropped or repeated tokens would make 'one epoch' a matter of opinion."""
    corpus = opened(packing=packing)
    limit = corpus.index.num_positions(1)
    steps = corpus.index.num_steps(1, 32)
    used = valid(corpus.batch(step * 32, 32, limit) for step in range(steps))
    num_texts = 1 if packing == "pack" else len(corpus._train.stream.ends)
    assert used == corpus.num_train_tokens - num_texts
    assert valid([corpus.batch(steps * 32, 32, limit)]) == 0


@pytest.mark.parametrize("packing", ["pack", "pad"])
def test_a_batch_is_its_shares_side_by_side(opened, packing):
    """Two ranks of 6 and 2 samples read what one rank of 8 reads."""
    corpus = opened(packing=packing)
    whole = corpus.batch(40, 8)
    parts = [corpus.batch(40, 6), corpus.batch(46, 2)]
    for side in (0, 1):
        assert (np.concatenate([part[side] for part in parts]) == whole[side]).all()
        assert whole[side].shape == (8, 16)
        assert whole[side].dtype == np.int64


@pytest.mark.parametrize("batch", [1, 7, 8, 64])
def test_every_held_out_sample_counts_once(opened, batch):
    """An evaluation padded with repeated samples weighs those twice."""
    corpus = opened()
    batches = list(corpus.held_out_batches(batch))
    assert {targets.shape for _, targets in batches} == {(batch, 16)}
    num_real = sum(int((targets != IGNORED).any(axis=1).sum()) for _, targets in batches)
    assert num_real == corpus.num_held_out
    assert valid(batches) == corpus.num_held_out_tokens - 1


def test_evaluation_is_the_same_each_time_and_leaves_training_alone(opened):
    """Curves of two runs that evaluate at different steps must stay comparable."""
    undisturbed = [opened().batch(step * 8, 8) for step in range(60)]
    corpus = opened()
    evaluations = []
    for step, expected in enumerate(undisturbed):
        if step % 5 == 0:
            evaluations.append(np.concatenate([targets for _, targets in corpus.held_out_batches(8)]))
        assert all((a == b).all() for a, b in zip(corpus.batch(step * 8, 8), expected, strict=True))
    assert all((evaluation == evaluations[0]).all() for evaluation in evaluations)


def test_ranks_evaluate_their_part(opened):
    """Eight ranks that each take a stretch see every sample once."""
    corpus = opened(packing="pad")
    per_rank = -(-corpus.num_held_out // 8)
    parts = [corpus.held_out_batch(rank * per_rank, per_rank) for rank in range(8)]
    assert valid(parts) == valid(corpus.held_out_batches(1))


def test_digest_says_whether_batches_are_equal(opened, lines):
    """A rank that holds other data, or cuts it otherwise, must not join."""
    digests = [
        opened().digest,
        opened(sequence=8).digest,
        opened(packing="pad").digest,
        opened(seed=1).digest,
        opened(held_out=0.3).digest,
    ]
    assert opened().digest == digests[0]
    assert len(set(digests)) == 5


def test_entropy_of_even_frequencies_is_the_logarithm():
    """The figure that a loss is compared with."""
    assert unigram_entropy(np.array([[1, 2, 3, 4], [4, 3, 2, 1]])) == pytest.approx(math.log(4))
    assert unigram_entropy(np.array([5, 5, IGNORED])) == 0.0
    assert unigram_entropy(np.array([IGNORED])) == 0.0


@pytest.mark.parametrize("packing", ["pack", "pad"])
def test_held_out_entropy_is_that_of_the_targets(opened, packing):
    """Computed from counts, equal to what the batches hold."""
    corpus = opened(packing=packing)
    targets = np.concatenate([targets for _, targets in corpus.held_out_batches(10)])
    assert corpus.held_out_entropy() == pytest.approx(unigram_entropy(targets), rel=1e-12)


def test_nothing_held_out(opened):
    """held_out: 0 trains on all and evaluates on nothing."""
    corpus = opened(held_out=0)
    assert corpus.num_held_out == 0
    assert list(corpus.held_out_batches(4)) == []
    assert corpus.held_out_entropy() is None
    assert corpus.num_samples > opened().num_samples


def test_trained_tokenizer_gives_ids_below_its_size(opened):
    """An id beyond the network's vocabulary ends a run in the middle of a step."""
    corpus = opened(tokenizer={"bpe": {"vocab": 280}})
    assert corpus.vocab_size == 280
    tokens, targets = corpus.batch(0, corpus.num_samples)
    assert tokens.max() < 280
    assert targets.max() < 280


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence": 0}, "at least 1 token, not 0"),
        ({"packing": "stuff"}, "'stuff' is not one of pack, pad"),
        ({"held_out": 1.5}, "1.5 is not a fraction"),
        ({"field": "body"}, "no field 'body'; fields found: 'text'"),
    ],
)
def test_wrong_settings(opened, changes, message):
    """Refused before anything is trained."""
    with pytest.raises(DataError, match=message):
        opened(**changes)


def test_documents_without_text(opened, tmp_path):
    """Empty files are documents, but no data."""
    (tmp_path / "empty").mkdir()
    for name in "ab":
        (tmp_path / "empty" / name).write_text("")
    with pytest.raises(DataError, match="the documents to train on hold no text"):
        opened(text=str(tmp_path / "empty"))


def test_cache_inside_the_text_is_not_text(opened, tmp_path, monkeypatch):
    """The second run on a folder would train on the tokens of the first."""
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text("text " * 9)
    monkeypatch.chdir(tmp_path)
    first = opened(text=".", cache_folder="cache")
    assert opened(text=str(tmp_path), cache_folder="./cache").digest == first.digest
    assert opened(text="**/*", cache_folder=tmp_path / "cache").digest == first.digest


def test_cached_corpus_opens_without_heavy_imports(lines, tmp_path):
    """Every rank opens the corpus; only the one that builds it should pay for parsers and tokenizers."""
    code = f"""
import sys
from trimtab.runtime.data import open_corpus
open_corpus(text={str(lines)!r}, field="text", tokenizer={{"bpe": {{"vocab": 280}}}}, sequence=8, held_out=0.2,
            packing="pack", seed=0, cache_folder={str(tmp_path / "cache")!r})
print([name for name in ("tokenizers", "duckdb") if name in sys.modules])
"""
    printed = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert printed == ["['tokenizers']", "[]"]
