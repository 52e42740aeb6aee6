"""Reading YAML strictly."""

import pytest

from trimtab.spec.errors import YamlError
from trimtab.spec.located_text import LocatedText
from trimtab.spec.yaml_documents import (
    MAX_BYTES,
    ListValue,
    MappingValue,
    ScalarValue,
    read_mapping,
    read_yaml,
)

SCALARS = {
    "1e-5": 1e-5,
    "1E5": 1e5,
    ".5": 0.5,
    "5.": 5.0,
    "+3": 3,
    "-0.1e-3": -1e-4,
    "NO": "NO",
    "on": "on",
    "yes": "yes",
    "True": True,
    "false": False,
    "12:30:00": "12:30:00",
    "1:30": "1:30",
    "2024-01-01": "2024-01-01",
    "012": 12,
    "0o17": 15,
    "0xff": 255,
    "1_000": "1_000",
    ".inf": float("inf"),
    "inf": "inf",
    "~": None,
    "null": None,
    "''": "",
    "'1e-5'": "1e-5",
    '"true"': "true",
    "!!str 12": "12",
    "9" * 5000: float("inf"),
}


@pytest.mark.parametrize(("written", "value"), SCALARS.items(), ids=lambda item: str(item)[:12])
def test_scalars_follow_yaml_1_2(written: str, value: object) -> None:
    """S-CFG-01: otherwise 1e-5 is text, NO is false, and 12:30:00 is 45000."""
    scalar = read_mapping(f"key: {written}\n", source="run.yaml").entries["key"].value
    assert isinstance(scalar, ScalarValue)
    assert scalar.value == value
    assert type(scalar.value) is type(value)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: 1\nb: 2\na: 3\n", (1, 3)),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", (2, 4)),
        ("a:\n  - b: 1\n    c: 2\n    b: 3\n", (2, 4)),
    ],
    ids=["top level", "nested", "list item"],
)
def test_duplicate_key_names_both_lines(text: str, lines: tuple[int, int]) -> None:
    """S-CFG-03: otherwise the last one wins in silence."""
    with pytest.raises(YamlError) as caught:
        read_mapping(text, source="run.yaml")
    (problem,) = caught.value.problems
    assert (problem.others[0].span.line, problem.span.line) == lines
    assert all(f"run.yaml:{line}:" in str(caught.value) for line in lines)


def test_every_duplicate_is_reported() -> None:
    """Otherwise a user mends one and meets the next."""
    with pytest.raises(YamlError) as caught:
        read_mapping("a: 1\na: 2\nb: {c: 1, c: 2}\n", source="run.yaml")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a:\n\tb: 1\n", "2:1", "a tab"),
        ("", "1:1", "the file is empty"),
        ("# only a comment\n", "1:1", "the file is empty"),
        ("- 1\n", "1:1", "holds a list"),
        ("hello\n", "1:1", "the single value 'hello'"),
        ("a: 1\n---\nb: 2\n", "2:1", "a second document"),
        ("a: !!int 1\n", "1:4", "tag"),
        ("a: !secret {b: 1}\n", "1:4", "tag"),
        ("a: &x [*x]\n", "1:4", "alias of itself"),
        ("a: *nowhere\n", "1:4", "undefined alias"),
        ("? [a]\n: 1\n", "1:3", "single word"),
        ("a: 'open\n", "1:4", "never closed"),
        ("a: {b: 1\nc: 2\n", "2:2", "expected"),
        ("a: b: c\n", "1:5", "second ':'"),
        ("a:\n  b: 1\n c: 2\n", "3:2", "no mapping above"),
        ("a: \x01\n", "1:4", "U+0001"),
        ("a: " + "[" * 60 + "]" * 60, "1:53", "levels of nesting"),
        ("a: {b: ${X}}\n", "1:9", "expected"),
    ],
    ids=lambda item: repr(item)[:24],
)
def test_broken_text_is_one_message_with_a_place(text: str, place: str, message: str) -> None:
    """S-CFG-07: otherwise a user reads PyYAML's traceback."""
    with pytest.raises(YamlError) as caught:
        read_mapping(text, source="run.yaml")
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"run.yaml:{place}  ")
    assert message in first


def test_alias_bomb_is_refused_before_it_is_walked() -> None:
    """Otherwise 400 bytes of YAML hold 43 million values."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for inner, outer in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{outer}: &{outer} [{', '.join([f'*{inner}'] * 9)}]")
    with pytest.raises(YamlError, match="more than 20000 values"):
        read_mapping("\n".join(lines), source="run.yaml")


def test_a_few_aliases_are_fine() -> None:
    """Otherwise anchors, which people use, are refused with the bombs."""
    tree = read_mapping("a: &a {x: 1}\nb: *a\n", source="run.yaml")
    assert tree.entries["b"].value == tree.entries["a"].value


def test_oversized_text_is_refused() -> None:
    """Otherwise a wrong file name reads gigabytes through a slow parser."""
    with pytest.raises(YamlError, match="larger than 1048576 bytes"):
        read_yaml("#" * (MAX_BYTES + 1), source="run.yaml")


def test_every_key_and_value_has_its_place() -> None:
    """Otherwise errors point at the wrong words."""
    tree = read_mapping("a:\n  key: [one, {two: 3}]\n", source="run.yaml")
    inner = tree.entries["a"].value
    assert isinstance(inner, MappingValue)
    entry = inner.entries["key"]
    assert str(entry.key_span) == "run.yaml:2:3"
    assert isinstance(entry.value, ListValue)
    first, second = entry.value.items
    assert (str(first.span), first.span.length) == ("run.yaml:2:9", 3)
    assert isinstance(second, MappingValue)
    assert str(second.entries["two"].value.span) == "run.yaml:2:20"


@pytest.mark.parametrize(
    ("document", "word", "place"),
    [
        ("k: |\n  one\n    two\n", "two", (3, 5)),
        ("k: |  # with two\n\n  one\n\n  two\n", "two", (5, 3)),
        ("k: >-\n  one\n  two\n", "two", (3, 3)),
        ("k: one two\n", "two", (1, 8)),
        ("k: one\n  two\n", "two", (2, 3)),
        ("k: 'it''s two'\n", "two", (1, 11)),
        ('k: "one\\n two"\n', "two", (1, 11)),
        ("k: |2\n   one\n  two\n", "two", (3, 3)),
    ],
)
def test_words_inside_a_scalar_have_their_place(document: str, word: str, place: tuple[int, int]) -> None:
    """Otherwise an error in a formula points at the top of its block."""
    scalar = read_mapping(document, source="run.yaml").entries["k"].value
    assert isinstance(scalar, ScalarValue)
    assert scalar.located is not None
    start = scalar.text.index(word)
    span = scalar.located.span(start, start + len(word))
    assert (span.line, span.column, span.length) == (*place, len(word))


def test_end_of_a_text_has_a_place() -> None:
    """Otherwise 'the statement ends here' cannot be pointed at."""
    assert str(LocatedText.whole("ab\nc", source="x").span(4, 4)) == "x:2:2"
    assert str(LocatedText.whole("", source="x").span(0, 0)) == "x:1:1"
