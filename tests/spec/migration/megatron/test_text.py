"""The text, its tokenizer and what is held out."""

import pytest

from tests.spec.migration.conftest import fates, loaded
from trimtab.spec.migration import Fate


@pytest.mark.parametrize(
    ("flags", "text", "tokenizer"),
    [
        ("--data-path /d/my_text_document", "/d/my_text_document", "tokenizer.json"),
        ("--data-path 0.3 /d/a 0.7 /d/b", ["/d/a", "/d/b"], "tokenizer.json"),
        ("--train-data-path /d/a --tokenizer-model /m/tokenizer.json", "/d/a", "/m/tokenizer.json"),
        ("--data-path $DATA --tokenizer-model $MODEL", "text.jsonl", "tokenizer.json"),
        ("--data-path <path>", "text.jsonl", "tokenizer.json"),
        ("", "text.jsonl", "tokenizer.json"),
        ("--mock-data --tokenizer-type NullTokenizer", "python-stdlib", "bytes"),
        ("--mock-data", "python-stdlib", "bytes"),
    ],
)
def test_text_and_tokenizer(migrate, flags, text, tokenizer):
    """A path that is not there must be seen as a placeholder, and not be someone's variable."""
    data = migrate(flags).job["data"]
    assert (data["text"], data["tokenizer"]) == (text, tokenizer)
    loaded(migrate(flags))


def test_what_megatron_reads_cannot_be_read(migrate):
    """Its .bin and .idx hold tokens, not text: the reason says what to name instead."""
    setting = fates(migrate("--data-path 0.3 /d/a 0.7 /d/b"))["--data-path"]
    assert setting.fate is Fate.CHANGED
    assert "name what they were made of" in setting.reason
    assert "weights of the mixture are left out" in setting.reason


@pytest.mark.parametrize(
    ("split", "held_out"),
    [("99,1,0", 0.01), ("949,50,1", 0.051), ("100,0,0", 0.0), ("98,2", 0.02), ("0,100,0", 0.99), ("1", 0.0)],
)
def test_the_part_held_out(migrate, split, held_out):
    """Text that was held out there and is trained on here makes the evaluation too good."""
    assert migrate(f"--split {split}").job["data"]["held_out"] == held_out


@pytest.mark.parametrize("split", ["a,b", "0,0,0", "-"])
def test_a_split_that_is_none(migrate, split):
    """Nothing to hold out by, and the table says so."""
    assert fates(migrate(f"--split {split}"))["--split"].fate is Fate.IMPOSSIBLE
