"""Conditions that make no sense are refused before any row is seen."""

import pytest

from tests.spec.language.programs import column, literal
from trimtab.spec import parse_strategy
from trimtab.spec.language import NOWHERE, And, Comparator, Comparison, RecomputeStatement, check_condition
from trimtab.spec.language.vocabulary import TABLE_COLUMNS


def problems_of(text: str) -> list[str]:
    (statement,) = parse_strategy(f"RECOMPUTE activations WHERE {text}", source="x.trim").statements
    assert isinstance(statement, RecomputeStatement)
    assert statement.where is not None
    found = check_condition(statement.where, TABLE_COLUMNS, what="columns")
    return [f"{problem.span.column - 28} {problem.message}" for problem in found]


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("layer = 1 AND name = 'x' OR NOT kind LIKE '%' AND stage IS NULL", []),
        ("layer = 'x'", ["9 'x' is text, and layer is a number: they cannot be compared"]),
        ("'x' = layer", ["7 layer is a number, and 'x' is text: they cannot be compared"]),
        ("kind = 3", ["8 3 is a number, and kind is text: they cannot be compared"]),
        ("kind = layer + 1", ["8 this value is a number, and kind is text: they cannot be compared"]),
        ("kind IN ('a', 3)", ["15 3 is a number, and kind is text: they cannot be compared"]),
        ("layer BETWEEN 0 AND 'x'", ["21 'x' is text, and layer is a number: they cannot be compared"]),
        ("layer LIKE 'x'", ["1 LIKE compares text, and layer is a number"]),
        ("kind + 1 = 2", ["1 + works on numbers, and kind is text"]),
        ("1 % name = 2", ["5 % works on numbers, and name is text"]),
        ("layr = 1 OR knd = 'x'", ["1 unknown column 'layr'", "13 unknown column 'knd'"]),
        ("layr = knd", ["1 unknown column 'layr'", "8 unknown column 'knd'"]),
        ("Layer = 1", ["1 unknown column 'Layer'"]),
        ("layr IS NULL", ["1 unknown column 'layr'"]),
        ("layr + 'x' = 2", ["1 unknown column 'layr'", "8 + works on numbers, and 'x' is text"]),
    ],
)
def test_messages(text: str, messages: list[str]) -> None:
    """Otherwise a comparison that cannot hold matches nothing, without a word."""
    assert problems_of(text) == messages


def test_trees_that_no_text_gives_are_refused_too() -> None:
    """Otherwise a strategy made by a program fails while it is evaluated."""
    inner = Comparison(operator=Comparator.EQUAL, left=column("layer"), right=literal(1), span=NOWHERE)
    outer = Comparison(operator=Comparator.EQUAL, left=inner, right=literal(1), span=NOWHERE)
    (problem,) = check_condition(outer, TABLE_COLUMNS, what="columns")
    assert problem.message == "a value is needed here, and this is a condition"
    chain = And(operands=(inner, column("layer")), span=NOWHERE)
    (problem,) = check_condition(chain, TABLE_COLUMNS, what="columns")
    assert problem.message == "a condition is needed here, such as layer < 4"
