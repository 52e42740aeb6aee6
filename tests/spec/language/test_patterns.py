"""Patterns of LIKE."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.spec.language.patterns import compile_pattern

letters = st.text(alphabet="ab_%.\n", max_size=8)


@given(letters, letters)
def test_answers_are_those_of_the_regular_expression(pattern: str, text: str) -> None:
    """Otherwise a name is taken for another."""
    expression = "".join({"%": ".*", "_": "."}.get(sign, re.escape(sign)) for sign in pattern)
    expected = re.fullmatch(expression, text, re.DOTALL) is not None
    assert compile_pattern(pattern)(text) is expected


@pytest.mark.parametrize(
    ("pattern", "text", "answer"),
    [
        ("%.wo", "layers.3.wo", True),
        ("%.wo", "layers.3.wo.bias", False),
        ("ab%ba", "aba", False),
        ("ab%ba", "abba", True),
        ("%", "", True),
        ("_", "", False),
        ("", "", True),
        ("%%", "x", True),
        ("a%b%c", "a-b-b-c", True),
    ],
)
def test_examples(pattern: str, text: str, answer: bool) -> None:
    """Otherwise the overlap of a pattern's ends counts twice."""
    assert compile_pattern(pattern)(text) is answer


@pytest.mark.timeout(10)
def test_no_pattern_hangs() -> None:
    """Otherwise a pattern with many signs hangs the command: backtracking would run into the timeout."""
    matches = compile_pattern("%a" * 500 + "b")
    assert not matches("a" * 2000)
