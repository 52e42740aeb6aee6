import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from trimtab.runtime.data.errors import DataError, DataWarning
from trimtab.runtime.data.tokenizers import ByteTokenizer, choose_tokenizer, token_type

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "größer als der Hut"] * 20


def write_tokenizer(path, special=("<s>", "</s>")):
    words = {word: number for number, word in enumerate(["[UNK]", "a", "b", "c"])}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.add_special_tokens(list(special))
    library.enable_truncation(2)
    library.enable_padding(length=2)
    library.save(str(path))


@given(st.text())
def test_bytes_round_trip(text):
    """Every text is encoded, and nothing of it is lost."""
    ids = ByteTokenizer().encode(text)
    assert ids.dtype == np.uint8
    assert ids.tobytes().decode() == text


def test_library_tokenizer(tmp_path):
    """Truncation in the file would silently cut every document to its first tokens."""
    write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = choose_tokenizer(str(tmp_path / "tokenizer.json")).prepare([])
    assert (tokenizer.vocab_size, tokenizer.boundary) == (6, 5)
    assert tokenizer.encode("a b c a").tolist() == [1, 2, 3, 1]
    folder = choose_tokenizer(str(tmp_path))
    assert folder.digest == choose_tokenizer(str(tmp_path / "tokenizer.json")).digest


def test_special_token_in_text_is_text(tmp_path):
    """A document that quotes the boundary would otherwise end in the middle."""
    write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = choose_tokenizer(str(tmp_path)).prepare([])
    assert tokenizer.boundary not in tokenizer.encode("a </s> b").tolist()
    trained = choose_tokenizer({"bpe": {"vocab": 260}}).prepare(TEXTS)
    assert trained.boundary not in trained.encode("a <|endoftext|> b").tolist()


def test_digest_follows_the_content(tmp_path):
    """An edited tokenizer must not find the tokens of the old one in the cache."""
    write_tokenizer(tmp_path / "a.json")
    write_tokenizer(tmp_path / "b.json", special=("<pad>", "</s>"))
    assert (
        choose_tokenizer(str(tmp_path / "a.json")).digest != choose_tokenizer(str(tmp_path / "b.json")).digest
    )


def test_boundary_is_the_only_special_token_or_a_known_name(tmp_path):
    """Guessing wrong would put a padding token between documents."""
    write_tokenizer(tmp_path / "one.json", special=["<stop>"])
    assert choose_tokenizer(str(tmp_path / "one.json")).prepare([]).boundary == 4
    write_tokenizer(tmp_path / "two.json", special=["<x>", "<y>"])
    with pytest.raises(DataError, match="marks no end of a document: its special tokens are <x>, <y>"):
        choose_tokenizer(str(tmp_path / "two.json")).prepare([])


def test_bpe_is_trained_the_same_twice():
    """Two machines that train a tokenizer on the same text must agree on every id."""
    first, second = (choose_tokenizer({"bpe": {"vocab": 280}}).prepare(TEXTS) for _ in range(2))
    assert first.to_json() == second.to_json()
    ids = first.encode("the cat")
    assert ids.dtype == np.uint16
    assert len(ids) < len("the cat")
    assert max(ids) < first.vocab_size == 280


def test_bpe_saved_and_loaded_gives_the_same_ids(tmp_path):
    """The tokenizer kept beside the tokens is the one that made them."""
    trained = choose_tokenizer({"bpe": {"vocab": 280}}).prepare(TEXTS)
    (tmp_path / "tokenizer.json").write_text(trained.to_json())
    loaded = choose_tokenizer(str(tmp_path)).prepare([])
    text = "  the größer\tcat\n\n日本 <|endoftext|>"
    assert loaded.encode(text).tolist() == trained.encode(text).tolist()
    assert loaded.boundary == trained.boundary


def test_bpe_of_little_text_keeps_the_vocabulary_asked_for():
    """The network was planned with that many rows; training must not disagree with the plan."""
    with pytest.warns(DataWarning, match="only 2.. of the 5000 tokens"):
        assert choose_tokenizer({"bpe": {"vocab": 5000}}).prepare(["abab"]).vocab_size == 5000


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("byte", "'byte' cannot be read: No such file"),
        ({"bpe": {"vocab": 256}}, "at least 257"),
        ({"bpe": {}}, "is not a tokenizer; write bytes"),
        ({"bpe": None}, "is not a tokenizer; write bytes"),
        ({"wordpiece": {"vocab": 280}}, "is not a tokenizer; write bytes"),
    ],
)
def test_wrong_choice(choice, message):
    """Each message says what may be written instead."""
    with pytest.raises(DataError, match=message):
        choose_tokenizer(choice)


def test_file_that_is_no_tokenizer(tmp_path):
    """Wrong JSON, right JSON of something else, and bytes."""
    path = tmp_path / "t.json"
    for content in (b"{", b'{"a": 1}'):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"t\.json is not a tokenizer\.json"):
            choose_tokenizer(str(path)).prepare([])
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match="is not text"):
        choose_tokenizer(str(path))


@pytest.mark.parametrize(("vocab", "name"), [(256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4")])
def test_token_type_holds_every_id(vocab, name):
    """An id that does not fit would wrap to another one."""
    assert token_type(vocab) == np.dtype(name)
