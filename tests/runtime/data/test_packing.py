import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.runtime.data.packing import EMPTY, IGNORED, Stream, cut
from trimtab.spec import Packing

BOUNDARY = 0
documents_of_tokens = st.lists(st.lists(st.integers(1, 255), max_size=20), min_size=1, max_size=8)


def stream_of(documents, dtype=np.uint8):
    tokens = list(itertools.chain.from_iterable([*document, BOUNDARY] for document in documents))
    ends = np.cumsum([len(document) + 1 for document in documents])
    return Stream(tokens=np.array(tokens, dtype), ends=ends.astype(np.int64), boundary=BOUNDARY)


def pairs(samples):
    """(input, target) of every valid target, in order."""
    tokens, targets = samples.take(np.arange(len(samples)))
    assert tokens.dtype == targets.dtype == np.int64
    assert tokens.shape == targets.shape == (len(samples), samples.sequence)
    is_valid = targets != IGNORED
    assert (tokens[~is_valid] == BOUNDARY).all()
    return list(zip(tokens[is_valid].tolist(), targets[is_valid].tolist(), strict=True))


def test_pack_by_hand():
    """Samples run on over the boundary; the last one is filled up."""
    tokens, targets = cut(stream_of([[1, 2, 3], [4]]), sequence=4, packing=Packing.PACK).take(
        np.array([0, 1])
    )
    assert tokens.tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]
    assert targets.tolist() == [[2, 3, 0, 4], [0, IGNORED, IGNORED, IGNORED]]


def test_pad_by_hand():
    """Samples stay inside a document, and a document's end is learned."""
    samples = cut(stream_of([[1, 2, 3], [], [4]]), sequence=2, packing=Packing.PAD)
    tokens, targets = samples.take(np.arange(len(samples)))
    assert tokens.tolist() == [[1, 2], [3, 0], [4, 0]]
    assert targets.tolist() == [[2, 3], [0, IGNORED], [0, IGNORED]]


@given(documents_of_tokens, st.integers(1, 9))
def test_pack_has_every_target_once(documents, sequence):
    """A token that is dropped or repeated changes what an epoch is."""
    stream = stream_of(documents)
    flat = stream.tokens.tolist()
    assert pairs(cut(stream, sequence=sequence, packing=Packing.PACK)) == list(itertools.pairwise(flat))


@given(documents_of_tokens, st.integers(1, 9))
def test_pad_has_every_target_once_and_never_crosses_documents(documents, sequence):
    """Two texts in one sample would teach that one follows from the other."""
    expected = [pair for document in documents for pair in itertools.pairwise([*document, BOUNDARY])]
    assert pairs(cut(stream_of(documents), sequence=sequence, packing=Packing.PAD)) == expected


@given(documents_of_tokens, st.integers(1, 9), st.sampled_from(Packing))
def test_counts_of_targets_are_those_of_the_samples(documents, sequence, packing):
    """The entropy in the report would be that of another data set."""
    samples = cut(stream_of(documents), sequence=sequence, packing=packing)
    targets = [target for _, target in pairs(samples)]
    assert samples.count_targets(256).tolist() == np.bincount(targets, minlength=256).tolist()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("packing", Packing)
def test_ignored_target_survives_every_token_type(dtype, packing):
    """-100 in an unsigned type is a token, 156 among bytes, and would be trained on."""
    _, targets = cut(stream_of([[7, 8]], dtype), sequence=5, packing=packing).take(np.array([0]))
    assert targets.tolist() == [[8, 0, IGNORED, IGNORED, IGNORED]]


@pytest.mark.parametrize("packing", Packing)
def test_empty_samples_have_no_weight(packing):
    """What fills the last batch of a run must not be trained on, in any place of the batch."""
    samples = cut(stream_of([[1, 2]]), sequence=2, packing=packing)
    tokens, targets = samples.take(np.array([EMPTY, 0, EMPTY]))
    assert tokens.tolist() == [[0, 0], [1, 2], [0, 0]]
    assert targets.tolist() == [[IGNORED] * 2, [2, 0], [IGNORED] * 2]


@pytest.mark.parametrize("packing", Packing)
def test_stream_without_documents_has_no_samples(packing):
    """held_out: 0 leaves one side empty."""
    samples = cut(stream_of([]), sequence=2, packing=packing)
    assert len(samples) == 0
    assert samples.take(np.array([EMPTY]))[1].tolist() == [[IGNORED, IGNORED]]
