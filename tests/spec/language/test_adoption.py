"""Strategies that a script can be given, and those that it cannot, each refused at its place."""

import pytest

from trimtab.spec.language import parse_strategy, unsupported_beside_script


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MESH dp *",
        "MESH dp 4; SPLIT batch OVER dp; REDUCE grads OVER dp USING tree",
        "MESH dp 4 WITHIN node; REDUCE grads OVER dp USING native",
    ],
)
def test_replicas_with_shares_are_given(text: str) -> None:
    """What the documents show must be accepted."""
    assert unsupported_beside_script(parse_strategy(text, source="x.trim")) == []


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SPLIT heads, mlp OVER tp", "SPLIT heads"),
        ("STORE states OVER dp", "STORE"),
        ("RECOMPUTE activations", "RECOMPUTE"),
        ("AVERAGE params OVER dp EVERY 4 STEPS", "AVERAGE"),
        ("REDUCE grads OVER dp USING ring", "REDUCE grads USING ring"),
        ("REDUCE grads OVER dp BUCKET 25MB", "REDUCE ... BUCKET"),
        ("REDUCE grads OVER dp COMPRESS topk(0.01)", "REDUCE ... COMPRESS"),
        ("REDUCE grads OVER dp IN bf16", "REDUCE ... IN"),
        ("REDUCE grads WHERE layer < 4 OVER dp", "REDUCE ... WHERE"),
        ("COMPUTE layers IN bf16", "COMPUTE"),
        ("SPLIT batch OVER dp ON class = 'A100'", "SPLIT ... ON"),
    ],
)
def test_what_needs_the_operators_is_refused_with_the_reason(statement: str, words: str) -> None:
    """A strategy that is accepted and not carried out is the worst answer."""
    problems = unsupported_beside_script(parse_strategy(f"MESH dp 2, tp 2\n{statement}", source="x.trim"))
    assert problems[0].message.partition(":")[0] == (f"{words} cannot be given to a script")
    assert problems[0].span.line == 2
