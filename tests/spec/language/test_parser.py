"""Text of the strategy language into statements."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.spec import StrategyError, parse_strategy, print_program
from trimtab.spec.language import AxisSize, MeshStatement, Name, Program, ReduceStatement, SplitStatement
from trimtab.terms import Span

NOWHERE = Span(source="", line=1, column=1)

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).map(
    lambda text: Name(text=text, span=NOWHERE)
)
meshes = st.lists(
    st.builds(AxisSize, axis=names, size=st.none() | st.integers(0, 4096), span=st.just(NOWHERE)),
    min_size=1,
    max_size=4,
).map(lambda axes: MeshStatement(axes=tuple(axes), span=NOWHERE))
splits = st.builds(
    SplitStatement, dims=st.lists(names, min_size=1, max_size=3).map(tuple), axis=names, span=st.just(NOWHERE)
)
reductions = st.builds(
    ReduceStatement,
    table=names,
    axes=st.lists(names, min_size=1, max_size=3).map(tuple),
    route=st.none() | names,
    span=st.just(NOWHERE),
)
programs = st.lists(meshes | splits | reductions, max_size=5).map(
    lambda found: Program(statements=tuple(found))
)


@settings(deadline=None, max_examples=50)
@given(programs)
def test_printed_program_parses_to_itself(program: Program) -> None:
    """Otherwise a stored strategy is another one; names may be spelt like keywords."""
    assert parse_strategy(print_program(program), source="x.trim") == program


def test_free_form() -> None:
    """Otherwise a strategy copied from a page does not parse."""
    text = "mesh dp 4,site *;;  -- two axes; really\n\n\tSplit batch Over dp ; reduce grads over dp , site using tree\r\n--end"
    assert print_program(parse_strategy(text, source="x.trim")) == (
        "MESH dp 4, site *\nSPLIT batch OVER dp\nREDUCE grads OVER dp, site USING tree\n"
    )


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
    assert reduction.route is not None
    assert str(reduction.route.span) == "x.trim:2:30"
    assert str(split.span) == "x.trim:2:35"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("MESH", "1:4", "the statement ends here; expected a name"),
        ("MESH dp", "1:7", "the statement ends here; expected '*' or a number"),
        ("MESH dp 2x", "1:9", "found '2x'; expected '*' or a number"),
        ("MESH dp 2 tp 2", "1:11", "found 'tp'; expected ',' or the end of the statement"),
        ("MESHES dp 2", "1:1", "unknown statement 'MESHES'"),
        ("SPLIT batch OVERALL dp", "1:13", "found 'OVERALL'; expected ',' or OVER"),
        ("SPLIT batch OVER dp tp", "1:21", "found 'tp'; expected the end of the statement"),
        ("REDUCE grads OVER dp USING", "1:26", "the statement ends here; expected a name"),
        ("SPILT batch OVER dp", "1:1", "unknown statement 'SPILT'"),
        ("= 3", "1:1", "unknown statement '='"),
        ("REDUCE grads OVER dp % 3", "1:22", "found '%'"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, place: str, message: str) -> None:
    """Otherwise a user gets lark's list of terminals."""
    with pytest.raises(StrategyError) as caught:
        parse_strategy(text, source="x.trim")
    assert str(caught.value).startswith(f"x.trim:{place}  {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PLACE layers BETWEEN 0 AND 3 ON pp 0", "PLACE is not in this release"),
        ("STORE params, grads, states OVER dp", "STORE is not in this release"),
        ("AVERAGE params OVER site EVERY 64 STEPS USING nesterov(0.7)", "AVERAGE is not in this release"),
        ("RECOMPUTE activations WHERE layer % 2 = 0", "RECOMPUTE is not in this release"),
        ("OFFLOAD states TO host", "OFFLOAD is not in this release"),
        ("KEEP states IN fp32", "KEEP is not in this release"),
        ("COMPUTE layers WHERE layer < 2 IN bf16", "COMPUTE is not in this release"),
        ("SEAL grads OVER site", "SEAL is not in this release"),
        ("USE 'megatron-3d'(tp = 8)", "USE is not in this release"),
        ("MESH dp 2 WITHIN node", "WITHIN is not in this release, in the statement MESH"),
        (
            "SPLIT embed OF params WHERE name LIKE '%.wo' OVER tp",
            "OF is not in this release, in the statement SPLIT",
        ),
        ("SPLIT layers OVER pp MICROBATCHES 8", "MICROBATCHES is not in this release"),
        ("REDUCE grads WHERE kind = 'embedding' OVER dp COMPRESS topk(0.01)", "WHERE is not in this release"),
        ("REDUCE grads OVER dp USING ring BUCKET 25MB", "BUCKET is not in this release"),
        ("REDUCE grads OVER dp IN bf16", "IN is not in this release, in the statement REDUCE"),
        (
            "REDUCE grads OVER dp USING hierarchical(node, rack)",
            "a setting in parentheses is not in this release",
        ),
        ("REDUCE grads OVER dp USING tree ON class = 'A100'", "ON is not in this release"),
    ],
)
def test_words_of_later_releases_are_refused_by_name(text: str, message: str) -> None:
    """Otherwise a strategy runs without one of its statements."""
    with pytest.raises(StrategyError, match=message):
        parse_strategy(text, source="x.trim")


def test_every_broken_statement_is_reported() -> None:
    """Otherwise a user mends one line and meets the next."""
    with pytest.raises(StrategyError) as caught:
        parse_strategy("MESH\nSPLIT batch OVER dp; SPLTI x\nREDUCE grads", source="x.trim")
    assert [str(problem.span) for problem in caught.value.problems] == [
        "x.trim:1:4",
        "x.trim:2:22",
        "x.trim:3:12",
    ]


def test_grammar_is_loaded_on_first_use_only() -> None:
    """Otherwise every command pays for a grammar that it does not use."""
    code = "import sys, trimtab.spec; assert 'lark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
