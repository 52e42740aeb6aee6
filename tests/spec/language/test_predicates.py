"""Conditions over rows give what SQL gives: TRUE, FALSE or NULL."""

import re
from random import Random

import duckdb
import pytest

from tests.spec.language.programs import Programs
from trimtab.spec import parse_strategy
from trimtab.spec.language import (
    Expression,
    RecomputeStatement,
    Value,
    check_condition,
    compile_predicate,
    print_expression,
)
from trimtab.spec.language.vocabulary import TABLE_COLUMNS, ColumnType

NUM_EXPRESSIONS = 400
NUM_ROWS = 40


def condition(text: str) -> Expression:
    program = parse_strategy(f"RECOMPUTE activations WHERE {text}", source="x.trim")
    (statement,) = program.statements
    assert isinstance(statement, RecomputeStatement)
    assert statement.where is not None
    return statement.where


def random_row(random: Random) -> dict[str, Value]:
    """Values that conditions of the generator hit, and NULL in every column."""
    texts = ("norm", "linear", "embedding", "vocab,embed", "layers.1.mlp.weight", "bf16", "", "_")
    return {
        name: random.choice(texts) if kind is ColumnType.TEXT else random.choice((0, 1, 2, 3, 7, -2, 128))
        for name, kind in TABLE_COLUMNS.items()
    } | {name: None for name in TABLE_COLUMNS if random.random() < 0.15}


def answers_of_duckdb(
    expressions: list[Expression], rows: list[dict[str, Value]]
) -> list[tuple[object, ...]]:
    types = {ColumnType.TEXT: "VARCHAR", ColumnType.NUMBER: "BIGINT"}
    columns = ", ".join(f"{name} {types[kind]}" for name, kind in TABLE_COLUMNS.items())
    # A number with a point is a DECIMAL to duckdb, and a float to us.
    tests = [re.sub(r"\b[0-9]+\.[0-9]+\b", r"\g<0>e0", print_expression(one)) for one in expressions]
    with duckdb.connect() as connection:
        # What duckdb did before version 2, and SQL's tables of plans want: no infinities, no end of the query.
        connection.execute("SET error_on_division_by_zero = false")
        connection.execute("SET ieee_floating_point_ops = false")
        connection.execute(f"CREATE TABLE items (position BIGINT, {columns})")
        marks = ", ".join("?" * (len(TABLE_COLUMNS) + 1))
        connection.executemany(
            f"INSERT INTO items VALUES ({marks})",
            [(position, *(row[name] for name in TABLE_COLUMNS)) for position, row in enumerate(rows)],
        )
        return connection.execute(f"SELECT {', '.join(tests)} FROM items ORDER BY position").fetchall()


def test_answers_are_those_of_duckdb() -> None:
    """Otherwise a formula that was tried in SQL matches other tensors here."""
    random = Random(20)
    programs = Programs(random=random)
    expressions = [programs.where() for _ in range(NUM_EXPRESSIONS)]
    rows = [random_row(random) for _ in range(NUM_ROWS)]
    assert [p for one in expressions for p in check_condition(one, TABLE_COLUMNS, what="columns")] == []
    expected = answers_of_duckdb(expressions, rows)
    seen = set()
    for index, expression in enumerate(expressions):
        holds = compile_predicate(expression)
        for row, answers in zip(rows, expected, strict=True):
            assert holds(row.__getitem__) is answers[index], (print_expression(expression), row)
            seen.add(answers[index])
    assert seen == {True, False, None}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("layer = 3", True),
        ("layer <> 3", False),
        ("layer != 4", True),
        ("stage = 3", None),
        ("NOT stage = 3", None),
        ("stage = 3 AND layer = 4", False),
        ("stage = 3 AND layer = 3", None),
        ("stage = 3 OR layer = 3", True),
        ("stage = 3 OR layer = 4", None),
        ("stage IS NULL", True),
        ("layer IS NOT NULL AND stage IS NULL", True),
        ("stage IN (1, 2)", None),
        ("stage NOT IN (1, 2)", None),
        ("layer NOT IN (1, 2)", True),
        ("layer IN (3.0)", True),
        ("stage BETWEEN 1 AND 2", None),
        ("layer BETWEEN 4 AND stage", False),
        ("layer BETWEEN 3 AND stage", None),
        ("layer / 0 = 1", None),
        ("layer % 0 = 1", None),
        ("layer / 2 = 1.5", True),
        ("(0 - layer) % 2 = -1", True),
        ("layer % -2 = 1", True),
        ("numel % 2.5 = 0.0", True),
        ("kind < 'z' AND kind > 'A'", True),
        ("kind LIKE 'N%'", False),
        ("1e300 * 1e300 > 1e308", True),
        ("1e300 * 1e300 - 1e300 * 1e300 = 0", None),
        ("1e300 * 1e300 % 2 = 0", None),
        ("9223372036854775807 * 9223372036854775807 / 2 > 4e37", True),
        ("9223372036854775807 * 9223372036854775807 * 9223372036854775807 % 2 = 0", True),
        ("1 < 2", True),
    ],
)  # fmt: skip
def test_three_values_and_the_edges_of_numbers(text: str, answer: bool | None) -> None:
    """Otherwise a row with NULL, or a division by zero, takes part in a statement by accident."""
    row = {"layer": 3, "stage": None, "kind": "norm", "numel": 10}
    assert compile_predicate(condition(text))(row.__getitem__) is answer


def test_ten_thousand_answers() -> None:
    """A condition is compiled once and asked of every row of a large model; each answer is its own."""
    tests = [
        compile_predicate(condition(text))
        for text in (
            "layer % 2 = 0", "kind IN ('norm', 'residual')", "name LIKE '%.weight'", "layer BETWEEN 3 AND 9",
            "layer < 4 AND NOT kind = 'norm' OR numel / 2 > 1e6",
        )
    ]  # fmt: skip
    rows = [
        {"layer": layer, "kind": "norm", "name": f"layers.{layer}.weight", "numel": 1000}.__getitem__
        for layer in range(2000)
    ]
    matched = [sum(holds(row) is True for row in rows) for holds in tests]
    assert matched == [1000, 2000, 2000, 7, 0]
