"""What the docstring under each field of a card says, read when somebody asks: most commands never do."""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache

from trimtab.spec.card_types import Card


def meaning_of(card: type[Card], field: str) -> str:
    """The docstring under a field; empty if it has none. ``field`` is its name in Python."""
    for base in card.__mro__:
        text = _meanings(base.__module__).get((base.__name__, field))
        if text is not None:
            return text
    return ""


@cache
def _meanings(module: str) -> Mapping[tuple[str, str], str]:
    """Docstrings of a module by (class, field)."""
    if not module.startswith("trimtab."):
        return {}
    found = {}
    for statement in ast.parse(inspect.getsource(sys.modules[module])).body:
        if not isinstance(statement, ast.ClassDef):
            continue
        for field, text in zip(statement.body, statement.body[1:], strict=False):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if (
                isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                found[statement.name, field.target.id] = inspect.cleandoc(text.value.value)
    return found
