"""Splits of parameters by name as AutoTP's specs.

Of several statements that match the last decides, of several specs the first: a job's specs stand in reverse.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.spec.language import And, Column, Expression, Like, Or, SplitStatement
from trimtab.spec.migration.deepspeed.matrices import Side, side_of
from trimtab.spec.migration.deepspeed.patterns import regular_expression

NO_SPEC = (
    "a spec names matrices of known layers: SPLIT heads OF params WHERE name LIKE '%.o_proj.weight' OVER tp"
)


def is_by_name(statement: SplitStatement) -> bool:
    """Whether a statement splits parameters that it chooses itself."""
    return statement.table is not None and statement.table.text == "params" and statement.where is not None


def specs_of(statement: SplitStatement) -> list[Mapping[str, Any]]:
    """The specs that say what a statement says, first match first; none if no spec does."""
    names = _names(statement.where)
    if names is None or len(statement.dims) != 1:
        return []
    (dim,), (chosen, left_out) = statement.dims, names
    sides = {pattern: side_of(pattern, dim.text) for pattern in chosen}
    if None in sides.values():
        return []
    by_side = {side: [pattern for pattern in chosen if sides[pattern] is side] for side in Side}
    skipped = [_spec(left_out, "skip")] if left_out else []
    return skipped + [_spec(patterns, side.value) for side, patterns in by_side.items() if patterns]


def _spec(patterns: Sequence[str], kind: str) -> Mapping[str, Any]:
    return {"patterns": [regular_expression(pattern) for pattern in patterns], "partition_type": kind}


def _names(condition: Expression | None) -> tuple[list[str], list[str]] | None:
    """The patterns of which a name must match one, and those of which it must match none; None if more is asked."""
    first, *others = condition.operands if isinstance(condition, And) else (condition,)
    chosen = [_pattern(operand) for operand in (first.operands if isinstance(first, Or) else (first,))]
    left_out = [_pattern(operand, is_negated=True) for operand in others]
    if None in (*chosen, *left_out):
        return None
    return [text for text in chosen if text is not None], [text for text in left_out if text is not None]


def _pattern(condition: Expression | None, *, is_negated: bool = False) -> str | None:
    match condition:
        case Like(operand=Column(name=name), pattern=pattern) if name.text == "name":
            return str(pattern.value) if condition.is_negated is is_negated else None
    return None
