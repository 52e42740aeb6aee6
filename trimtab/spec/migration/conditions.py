"""Conditions of formulas, compared as what they say and not as how they were typed."""

from functools import cache

from trimtab.spec.language import Expression, RecomputeStatement, parse_strategy


@cache
def where(text: str) -> Expression | None:
    """The syntax tree of a condition; equal trees say the same."""
    (statement,) = parse_strategy(f"RECOMPUTE activations WHERE {text}", source="condition").statements
    assert isinstance(statement, RecomputeStatement)
    return statement.where
