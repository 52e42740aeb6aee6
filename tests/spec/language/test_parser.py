"""Text of the strategy language into statements."""

import contextlib
import subprocess
import sys

import pytest

from trimtab.spec import StrategyError, parse_strategy, print_program
from trimtab.spec.language import (
    Between,
    Column,
    Comparison,
    MeshStatement,
    PlaceStatement,
    RecomputeStatement,
    ReduceStatement,
)
from trimtab.spec.language.tokens import MAX_CHARACTERS, MAX_LINE
from trimtab.spec.language.wording import MAX_PROBLEMS


def error_of(text: str) -> StrategyError:
    with pytest.raises(StrategyError) as caught:
        parse_strategy(text, source="x.trim")
    return caught.value


def places_of(text: str) -> list[str]:
    return [f"{problem.span.line}:{problem.span.column}" for problem in error_of(text).problems]


def test_free_form() -> None:
    """Otherwise a strategy copied from a page does not parse."""
    text = "mesh dp 4,site *;;  -- two axes; really\n\n\tSplit batch Over dp ; reduce grads over dp , site using tree\r\n--end"
    assert print_program(parse_strategy(text, source="x.trim")) == (
        "MESH dp 4, site *\nSPLIT batch OVER dp\nREDUCE grads OVER dp, site USING tree\n"
    )


def test_a_statement_goes_on_inside_parentheses() -> None:
    """Otherwise a long list must stand on one line."""
    text = "RECOMPUTE activations WHERE kind IN ('norm', -- small\n  'residual'\n) AND (layer < 4\n OR layer > 9)\nMESH dp 2"
    assert print_program(parse_strategy(text, source="x.trim")) == (
        "RECOMPUTE activations WHERE kind IN ('norm', 'residual') AND (layer < 4 OR layer > 9)\nMESH dp 2\n"
    )


def test_a_statement_does_not_go_on_after_a_comma() -> None:
    """Otherwise a comma too many swallows the next statement, and the error stands at the wrong line."""
    assert places_of("SPLIT batch OVER dp,\nMESH dp 2") == ["1:20"]


def test_a_forgotten_parenthesis_ends_at_the_next_statement() -> None:
    """Otherwise everything after it is lost with it."""
    error = error_of("RECOMPUTE activations WHERE (layer < 4\nSPLIT batch OVER dp\nSPLIT batch OVR dp")
    assert [problem.span.line for problem in error.problems] == [1, 3]
    assert "this parenthesis is never closed" in str(error)


def test_statements_and_names_know_their_places() -> None:
    """Otherwise a later complaint cannot point at the user's line."""
    program = parse_strategy(
        "MESH dp 4\n  REDUCE grads OVER dp USING tree;SPLIT batch OVER dp", source="x.trim"
    )
    mesh, reduction, split = program.statements
    assert isinstance(mesh, MeshStatement)
    assert isinstance(reduction, ReduceStatement)
    assert (str(mesh.axes[0].span), mesh.axes[0].span.length) == ("x.trim:1:6", 4)
    assert (str(reduction.span), reduction.span.length) == ("x.trim:2:3", 31)
    assert reduction.using is not None
    assert str(reduction.using.span) == "x.trim:2:30"
    assert str(split.span) == "x.trim:2:35"


def test_parts_of_conditions_know_their_places() -> None:
    """Otherwise a complaint about a condition points at its statement."""
    text = "RECOMPUTE activations WHERE layer + 1\n = 4 AND (\n  kind = 'norm')"
    program = parse_strategy(text.replace("\n =", " ="), source="x.trim")
    (statement,) = program.statements
    assert isinstance(statement, RecomputeStatement)
    where = statement.where
    assert where is not None
    assert (str(where.span), where.span.length) == ("x.trim:1:29", len("layer + 1 = 4 AND ("))
    first, second = where.operands  # type: ignore[union-attr]
    assert isinstance(first, Comparison)
    assert (str(first.left.span), first.left.span.length) == ("x.trim:1:29", 9)
    assert (str(second.span), second.span.length) == ("x.trim:2:3", 13)


def test_a_range_of_layers_is_short_for_a_condition() -> None:
    """Otherwise every reader of the tree must know two forms."""
    short, long = (
        parse_strategy(text, source="x.trim").statements[0]
        for text in (
            "PLACE layers BETWEEN 0 AND 3 ON pp 0",
            "PLACE layers ON pp 0 WHERE layer BETWEEN 0 AND 3",
        )
    )
    assert short == long
    assert isinstance(short, PlaceStatement)
    assert isinstance(short.where, Between)
    assert isinstance(short.where.operand, Column)


def test_sizes_are_bytes() -> None:
    """Otherwise a bucket of 25 MB has 25 bytes, or 26 million."""
    texts = ("25MB", "25mb", "1MiB", "2KB", "2kib", "1.5GB", "7B", "1TB")
    sizes = [25 * 10**6, 25 * 10**6, 2**20, 2000, 2048, 1_500_000_000, 7, 10**12]
    for text, size in zip(texts, sizes, strict=True):
        (statement,) = parse_strategy(f"REDUCE grads OVER dp BUCKET {text}", source="x").statements
        assert isinstance(statement, ReduceStatement)
        assert statement.bucket_bytes == size


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("MESH", "1:4", "the statement ends here; expected a name"),
        ("MESH dp", "1:7", "the statement ends here; expected '*' or a number"),
        ("MESH dp 2x", "1:9", "found '2x'; expected '*' or a number"),
        ("MESH dp 2.5", "1:9", "found '2.5'; expected a whole number"),
        ("MESH dp -2", "1:9", "found '-'; expected '*' or a number"),
        ("MESH dp 2 tp 2", "1:11", "found 'tp'; expected ',', WITHIN or the end of the statement"),
        ("MESH dp 99999999999999999999", "1:9", "the number 99999999999999999999 is too large"),
        ("MESHES dp 2", "1:1", "unknown statement 'MESHES'"),
        ("SPLIT OVER dp", "1:7", "found 'OVER'; expected a name"),
        ("SPLIT batch", "1:11", "the statement ends here; SPLIT needs OVER"),
        ("AVERAGE params", "1:14", "the statement ends here; AVERAGE needs OVER and EVERY"),
        ("SPLIT batch OVER dp BUCKET 25MB", "1:21", "SPLIT takes no BUCKET"),
        ("KEEP states OVER dp", "1:13", "KEEP takes no OVER"),
        ("SPLIT batch OVER dp OVER tp", "1:21", "a second OVER"),
        ("PLACE layers BETWEEN 0 AND 3 WHERE layer = 1 ON pp 0", "1:30", "a second WHERE"),
        ("PLACE layers BETWEEN 0 AND 3 ON pp", "1:34", "the statement ends here; expected a number"),
        ("REDUCE grads OVER dp USING", "1:26", "the statement ends here; expected a name"),
        ("REDUCE grads OVER dp, USING tree", "1:23", "found 'USING'; expected a name"),
        ("REDUCE grads OVER dp BUCKET 25", "1:29", "found '25'; expected a size such as 25MB"),
        ("REDUCE grads OVER dp BUCKET 25XB", "1:29", "found '25XB'; expected a size such as 25MB"),
        ("REDUCE grads OVER dp % 3", "1:22", "found '%'"),
        ("REDUCE grads WHERE layer OVER dp", "1:26", "found 'OVER'; expected BETWEEN, IN, IS, LIKE, NOT or a comparison"),
        ("REDUCE grads WHERE layer IN 3 OVER dp", "1:29", "found '3'; expected '('"),
        ("REDUCE grads WHERE (layer = 3 OVER dp", "1:31", "found 'OVER'; expected ')'"),
        ("REDUCE grads WHERE name LIKE 'x OVER dp", "1:30", "the quote that begins here is never closed"),
        ("AVERAGE params OVER site EVERY 64", "1:33", "the statement ends here; expected STEPS"),
        ("USE megatron", "1:5", "found 'megatron'; expected a text in quotes"),
        ("USE 'zero1'(a = )", "1:17", "found ')'; expected a number, a size such as 25MB or a text in quotes"),
        ("SPLIT heads OVER $tp", "1:18", "there is no parameter '$tp'"),
        ("PRESET 'x'()", "1:1", "PRESET heads the text of a preset"),
        ("= 3", "1:1", "unknown statement '='"),
        ("SPLIT bätch OVER dp", "1:7", "found 'bätch'; expected a name"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(text: str, place: str, message: str) -> None:
    """Otherwise a user gets lark's list of terminals."""
    assert str(error_of(text)).startswith(f"x.trim:{place}  {message}")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("SPILT batch OVER dp", "Did you mean SPLIT?"),
        ("SPLIT batch OVR dp", "Did you mean OVER?"),
        ("SPLIT batch OVER dp MICROBATCH 8", "Did you mean MICROBATCHES?"),
        ("SPLIT batch OVER dp BUCKET 1MB", "BUCKET belongs to REDUCE."),
        ("REDUCE grads WHERE layer == 3 OVER dp", "Equality is one sign: =."),
        ("REDUCE grads WHERE layer = NULL OVER dp", "IS NULL"),
    ],
)
def test_what_was_meant_is_suggested(text: str, hint: str) -> None:
    """Otherwise a slip of a finger costs a look into the manual."""
    assert hint in str(error_of(text))


def test_every_broken_statement_is_reported() -> None:
    """Otherwise a user mends one line and meets the next."""
    assert places_of("MESH\nSPLIT batch OVER dp; SPLTI x\nREDUCE grads") == ["1:4", "2:22", "3:12"]


def test_names_are_checked_although_another_statement_is_broken() -> None:
    """Otherwise a user mends the comma and meets the misspelt axis."""
    assert places_of("MESH dp 2\nSPLIT batch OVER pd\nREDUCE grads") == ["2:18", "3:12"]


def test_axes_are_not_unknown_because_the_mesh_is_broken() -> None:
    """Otherwise one comma too few makes every line an error."""
    assert places_of("MESH dp 2 tp 2\nSPLIT batch OVER dp\nSPLIT heads OVER tp") == ["1:11"]


def test_a_text_full_of_errors_gives_some_of_them() -> None:
    """Otherwise a binary file taken for a strategy prints a hundred thousand lines."""
    problems = error_of("?\n" * 5000).problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].message.startswith("more is wrong from here on")


# Nothing that is long or deep is slow, or ends Python.


@pytest.mark.parametrize(
    "condition",
    [
        "(" * 700 + "layer" + ")" * 700 + " = 1",
        "(" * 600 + "layer = 1" + ")" * 600,
        " AND ".join(["a = 1"] * 150),
        "x IN (" + ", ".join(["1"] * 400) + ")",
        "layer" + " + 1" * 48 + " = 1",
    ],
)
def test_what_is_long_can_be_read(condition: str) -> None:
    """Otherwise a generated strategy is refused, or ends in a RecursionError."""
    program = parse_strategy(
        f"RECOMPUTE activations WHERE {condition}".replace("x IN", "layer IN"), source="x"
    )
    assert parse_strategy(print_program(program), source="x") == program


@pytest.mark.parametrize(
    "condition",
    ["NOT " * 300 + "layer = 1", "layer" + " + 1" * 300 + " = 1", "(NOT " * 200 + "layer = 1" + ")" * 200],
)
def test_what_is_deep_is_refused_with_the_limit(condition: str) -> None:
    """Otherwise Python's own limit ends the command with a traceback."""
    error = error_of(f"RECOMPUTE activations WHERE {condition}")
    assert "deep inside one another; at most 50 can be read" in str(error)


def test_too_long_lines_and_programs_are_refused_with_the_limit() -> None:
    """Otherwise an error prints a megabyte, or a wrong file is read for minutes."""
    assert f"at most {MAX_LINE:,} can be read" in str(error_of("MESH dp 1 --" + "x" * MAX_LINE))
    assert f"at most {MAX_CHARACTERS:,} can be read" in str(error_of("MESH dp 1\n" * MAX_CHARACTERS))


@pytest.mark.parametrize(
    "line",
    [
        "REDUCE grads WHERE layer = 1 OVER dp USING ring\n",
        "REDUCE grads WHERE layer = 1 OVER dp USING ring;" * 30 + "\n",
        "REDUCE grads OVER\n",
        "(\n",
        "'\n",
        "MESH a 1" + ", a 1" * 300 + "\n",
    ],
)
@pytest.mark.timeout(30)
def test_a_long_text_is_read_or_refused(line: str) -> None:
    """Otherwise a long program takes minutes: what grows with the square of its length runs into the timeout."""
    text = line * (MAX_CHARACTERS // len(line))
    with contextlib.suppress(StrategyError):
        program = parse_strategy(text, source="x.trim")
        assert len(program.statements) == text.count("REDUCE") + text.count("MESH")


def test_nothing_is_read_with_lark() -> None:
    """Otherwise every command waits for tables to be made that are always the same."""
    code = (
        "import sys; from trimtab.spec import parse_strategy; parse_strategy('MESH dp 2', source='x'); "
        "assert 'lark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
