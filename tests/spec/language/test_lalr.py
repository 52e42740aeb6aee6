"""The tables in the package, and the loop that follows them."""

import os
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from lark.exceptions import UnexpectedToken

import trimtab.spec
from tests.spec.language.lark_tables import lark_parser, make_tables
from tests.spec.language.programs import Programs
from trimtab.spec.language import print_statement
from trimtab.spec.language.building import Builder
from trimtab.spec.language.lalr import UnexpectedTokenError, tables
from trimtab.spec.language.pieces import RefusedStatementError
from trimtab.spec.language.tokens import Token, cut_into_statements
from trimtab.spec.located_text import LocatedText

TABLES = Path(trimtab.spec.__file__).parent / "data" / "grammar.json"


def statements(num: int) -> list[list[Token]]:
    """Tokens of random statements, half of them broken by an exchange of two tokens or the loss of one."""
    random = Random(7)
    found = []
    for _ in range(num):
        programs = Programs(random=random, sensible=random.random() < 0.5)
        text = print_statement(random.choice((programs.statement, programs.use))())
        (tokens,) = cut_into_statements(LocatedText.whole(text, source="x"), {})
        if random.random() < 0.5:
            first, second = random.randrange(len(tokens)), random.randrange(len(tokens))
            tokens[first], tokens[second] = tokens[second], tokens[first]
        if random.random() < 0.3 and len(tokens) > 1:
            del tokens[random.randrange(len(tokens))]
        found.append(tokens)
    return found


def test_the_tables_are_those_of_the_grammar() -> None:
    """Otherwise the page shows a grammar that is not read; TRIMTAB_REGENERATE=1 makes them anew."""
    made = make_tables()
    if os.environ.get("TRIMTAB_REGENERATE") == "1":
        TABLES.write_text(made, encoding="utf-8")
    assert TABLES.read_text(encoding="utf-8") == made


def test_every_rule_has_a_method_that_builds_it() -> None:
    """Otherwise a statement is read and then ends in an AttributeError."""
    assert all(callable(rule.build) and rule.size > 0 for rule in tables().rules)
    built = {rule.build.__name__ for rule in tables().rules}
    methods = {name for name in vars(Builder) if not name.startswith("_")}
    assert methods <= built


def test_what_is_accepted_and_expected_is_what_lark_accepts_and_expects() -> None:
    """Otherwise our loop reads another language than the grammar says."""
    parser, outcomes = lark_parser(), set()
    for tokens in statements(1500):
        try:
            tables().parse(tokens, start="statement")
            ours = None
        except RefusedStatementError:
            ours = None
        except UnexpectedTokenError as error:
            ours = (error.token.type, error.expected)
        assert ours == _refusal_of_lark(parser, tokens), [token.text for token in tokens]
        outcomes.add(ours is None)
    assert outcomes == {True, False}


def _refusal_of_lark(parser: Any, tokens: list[Token]) -> tuple[str, frozenset[str]] | None:
    state = parser.parse_interactive(start="statement")
    try:
        for token in tokens:
            state.feed_token(cast(Any, token))
        state.feed_eof()
    except UnexpectedToken as error:
        return str(error.token.type), frozenset(map(str, state.accepts()))
    return None


@pytest.mark.parametrize("num", [10, 4000])
def test_repetitions_are_not_copied(num: int) -> None:
    """Otherwise a long list takes the square of its length."""
    text = f"RECOMPUTE activations WHERE layer IN ({', '.join(['1'] * num)})"
    (tokens,) = cut_into_statements(LocatedText.whole(text, source="x"), {})
    statement = tables().parse(tokens, start="statement")
    assert len(statement.where.items) == num
