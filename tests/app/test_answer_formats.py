"""Answers as text: exact for programs, readable for people at any width."""

import csv
import json
import math
from datetime import date, timedelta
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.app.answer_formats import as_csv, as_json, as_table, json_cell

NAMES = ("name", "bytes", "loss")
ROWS = [("layers.0.mlp.up.weight", 1_234_567, 2.5), ("head", None, None)]


def test_a_table_has_numbers_to_the_right_and_a_dash_for_null() -> None:
    """Digits under digits: that is how large ones are seen."""
    assert as_table(NAMES, ROWS, width=None).splitlines() == [
        "name                        bytes  loss",
        "layers.0.mlp.up.weight  1,234,567   2.5",
        "head                            -     -",
    ]


def test_a_table_without_rows_has_its_names() -> None:
    """Nobody should wonder whether the question was heard."""
    assert as_table(NAMES, [], width=80) == "name  bytes  loss"


def test_texts_give_way_to_numbers_where_the_terminal_is_narrow() -> None:
    """A number that is cut is another number."""
    shown = as_table(NAMES, ROWS, width=32)
    assert shown.splitlines()[1] == "layers.0.mlp.u…  1,234,567   2.5"


def test_where_a_table_does_not_fit_every_cell_has_a_line() -> None:
    """A phone over ssh has forty columns."""
    assert as_table(NAMES, ROWS[:1], width=24).splitlines() == [
        "row 1",
        "  name   layers.0.mlp.u…",
        "  bytes  1,234,567",
        "  loss   2.5",
    ]


@given(
    st.lists(st.tuples(st.text(max_size=60), st.integers(), st.floats(), st.text(max_size=200)), max_size=5),
    st.integers(min_value=40, max_value=200),
)
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[Any, ...]], width: int) -> None:
    """A line that wraps tears every column below it."""
    shown = as_table(("a", "b", "c", "d"), rows, width=width)
    assert all(len(line) <= width or "  b  " in line for line in shown.split("\n"))


def test_what_would_steer_a_terminal_is_shown_as_a_space() -> None:
    """Errors of ranks are data; they must not clear the screen."""
    assert as_table(("error",), [("\x1b[2Jboo\nhoo\t!",)], width=None).splitlines() == [
        "error",
        " [2Jboo hoo !",
    ]


def test_csv_is_read_back_as_it_was() -> None:
    """Quotes, commas and line ends inside of texts; NULL is an empty field."""
    rows = [('a "b", c\nd', None, True, Decimal("1.50"), 2**70, [1, None], float("inf"))]
    text = as_csv(tuple("abcdefg"), rows)
    assert list(csv.reader(StringIO(text))) == [
        list("abcdefg"),
        ['a "b", c\nd', "", "true", "1.50", str(2**70), "[1, null]", "inf"],
    ]


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def test_json_is_strict() -> None:
    """NaN and infinity are not JSON; a parser in another language stops there."""
    values = (
        2**70,
        -(2**127),
        Decimal("12345678901234567890.5"),
        float("nan"),
        math.inf,
        None,
        True,
        "é\n\x00",
    )
    text = as_json(tuple("abcdefgh"), ("X",) * 8, [values])
    document = json.loads(text, parse_constant=refuse, parse_float=Decimal)
    assert document["columns"][0] == {"name": "a", "type": "X"}
    assert list(document["rows"][0].values()) == [
        2**70,
        -(2**127),
        Decimal("12345678901234567890.5"),
        None,
        None,
        None,
        True,
        "é\n\x00",
    ]


def test_json_without_rows() -> None:
    """An empty answer is a document, too."""
    assert json.loads(as_json(("a",), ("BIGINT",), [])) == {
        "columns": [{"name": "a", "type": "BIGINT"}],
        "rows": [],
    }


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"a": [1, float("nan")], 2: Decimal("0.1")}, '{"a": [1, null], "2": 0.1}'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (timedelta(days=1), '"1 day, 0:00:00"'),
        (b"\x00\xff", '"00ff"'),
        (Decimal("1E+30"), "1" + "0" * 30),
    ],
)
def test_what_json_has_no_word_for_is_text(value: object, written: str) -> None:
    """SQL makes dates and blobs; none of them may end the answer."""
    assert json_cell(value) == written


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text() | st.floats(), st.lists, max_leaves=5)
)
def test_every_cell_is_strict_json(value: Any) -> None:
    """As above, for whatever comes."""
    json.loads(json_cell(value), parse_constant=refuse)
