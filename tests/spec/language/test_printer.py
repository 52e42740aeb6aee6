"""A syntax tree back as text, and the text back as the tree."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spec.language.programs import Programs
from trimtab.spec import parse_strategy, print_program
from trimtab.spec.language import WrittenStatement, print_statement
from trimtab.spec.language.parser import read_statements
from trimtab.spec.language.printer import print_size
from trimtab.spec.located_text import LocatedText
from trimtab.terms import parse_bytes


@settings(deadline=None, max_examples=300)
@given(st.randoms(use_true_random=False), st.booleans())
def test_printed_statements_are_read_as_themselves(random: Random, sensible: bool) -> None:
    """Otherwise a stored strategy is another one."""
    programs = Programs(random=random, sensible=sensible)
    statements: tuple[WrittenStatement, ...] = (*programs.program().statements, programs.use())
    printed = "".join(f"{print_statement(statement)}\n" for statement in statements)
    reading = read_statements(LocatedText.whole(printed, source="x.trim"))
    assert reading.problems == (), printed
    assert reading.statements == statements, printed
    # 1 and 1.0 are equal to Python; their texts are not.
    assert "".join(f"{print_statement(statement)}\n" for statement in reading.statements) == printed


@pytest.mark.parametrize(
    "text",
    [
        "MESH pp 2, dp *, tp 8 WITHIN node",
        "SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp IF ANY",
        "SPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 8 BALANCE BY time ON rank < 4",
        "SPLIT layers OVER pp USING 1f1b",
        "PLACE layers BETWEEN 0 AND 3 ON pp 0",
        "PLACE params WHERE kind = 'embedding' ON pp 0",
        "STORE params, grads, states OVER dp",
        "REDUCE grads WHERE NOT (layer < 4 OR layer IS NULL) OVER dp, ep USING hierarchical(node, rack) BUCKET 25MB COMPRESS topk(0.01) IN bf16 ON class = 'A100'",
        "AVERAGE params OVER site EVERY 64 STEPS USING nesterov(0.7) COMPRESS none",
        "RECOMPUTE activations WHERE (layer + 1) % 2 = 0 AND name NOT LIKE '%o''clock_'",
        "OFFLOAD states WHERE numel - (2 - 1) >= 2 * -3 TO host",
        "KEEP params, states IN fp32",
        "COMPUTE layers WHERE layer NOT BETWEEN 2 AND 4 / 2 IN bf16",
        "SEAL grads OVER site",
    ],
)
def test_canonical_form_stays(text: str) -> None:
    """Otherwise printing a strategy twice gives two texts."""
    assert print_program(parse_strategy(f"MESH tp 1\n{text}", source="x.trim")) == f"MESH tp 1\n{text}\n"


def test_clauses_are_printed_in_one_order() -> None:
    """Otherwise equal strategies look different in a diff."""
    text = (
        "reduce grads if any on rank = 0 in bf16 compress none bucket 1mb using ring over dp where layer != 1"
    )
    assert print_program(parse_strategy(text, source="x.trim")) == (
        "REDUCE grads WHERE layer <> 1 OVER dp USING ring BUCKET 1MB COMPRESS none IN bf16 ON rank = 0 IF ANY\n"
    )


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("((a = 1))", "a = 1"),
        ("(a = 1 AND b = 1) AND c = 1", "a = 1 AND b = 1 AND c = 1"),
        ("a = 1 AND (b = 1 OR c = 1)", "a = 1 AND (b = 1 OR c = 1)"),
        ("(a = 1 AND b = 1) OR c = 1", "a = 1 AND b = 1 OR c = 1"),
        ("NOT (a = 1)", "NOT a = 1"),
        ("NOT (a = 1 AND b = 1)", "NOT (a = 1 AND b = 1)"),
        ("NOT NOT a = 1", "NOT NOT a = 1"),
        ("(a - b) - c = 1", "a - b - c = 1"),
        ("a - (b - c) = 1", "a - (b - c) = 1"),
        ("a * (b % c) = (1)", "a * (b % c) = 1"),
        ("(a + b) / c = 1", "(a + b) / c = 1"),
        ("(a * b) + c = 1e3", "a * b + c = 1000.0"),
        ("a = - 1", "a = -1"),
        ("bytes > 1 MiB".replace(" MiB", "MiB"), "bytes > 1048576"),
    ],
)  # fmt: skip
def test_parentheses_are_kept_where_they_matter(written: str, printed: str) -> None:
    """Otherwise a condition changes its meaning on its way through a file."""
    reading = read_statements(LocatedText.whole(f"RECOMPUTE x WHERE {written}", source="x.trim"))
    assert reading.problems == ()
    assert print_statement(reading.statements[0]) == f"RECOMPUTE x WHERE {printed}"


@pytest.mark.parametrize(
    "size", [0, 1, 999, 1000, 1024, 25_000_000, 3 * 2**20, 10**12, 7 * 2**40, 9007199254740993]
)
def test_sizes_are_printed_exactly(size: int) -> None:
    """Otherwise a bucket changes by a rounding."""
    reading = read_statements(LocatedText.whole(f"REDUCE g OVER d BUCKET {print_size(size)}", source="x"))
    assert reading.statements[0].bucket_bytes == size  # type: ignore[union-attr]
    if size < 2**50:
        assert parse_bytes(print_size(size)) == size
