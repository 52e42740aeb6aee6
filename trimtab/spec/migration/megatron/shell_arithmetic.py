"""Whole numbers as a shell computes them: ``$(($GPUS * $NODES))``."""

import ast
import operator
import re
from collections.abc import Callable, Mapping

_LIMIT = 2**63
_MAX_DEPTH = 50


def evaluate(expression: str, values: Mapping[str, tuple[str, ...]]) -> int | None:
    """The number that an expression gives; None if a variable is open or it is no arithmetic.

    >>> evaluate("$GPUS * NODES - 1", {"GPUS": ("8",), "NODES": ("4",)}), evaluate("TP > 1 ? 1 : 0", {"TP": ("2",)})
    (31, 1)
    >>> evaluate("$UNSET + 1", {}) is None
    True
    """
    condition, question, rest = expression.partition("?")
    if question:
        yes, _, no = rest.rpartition(":")
        chosen = evaluate(condition, values)
        return None if chosen is None else evaluate(yes if chosen else no, values)
    try:
        return _compute(ast.parse(_as_python(expression), mode="eval").body, values, 0)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _as_python(expression: str) -> str:
    names = re.sub(r"\$\{?(\w+)\}?", r" \1 ", expression)
    return re.sub(r"!(?!=)", " not ", names.replace("&&", " and ").replace("||", " or ")).strip()


def _divide(left: int, right: int) -> int:
    """Towards zero, as C does."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.Mod: lambda left, right: left - _divide(left, right) * right,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def _compute(node: ast.expr, values: Mapping[str, tuple[str, ...]], depth: int) -> int | None:
    """The value of one element of the expression; None if it is open.

    Raises: ValueError for what a shell does not compute, or beyond 64 bits.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _bounded(node.value)
    if isinstance(node, ast.Name):
        return _variable(node.id, values)
    if isinstance(node, ast.UnaryOp):
        operand = _compute(node.operand, values, depth + 1)
        if operand is None or isinstance(node.op, ast.UAdd):
            return operand
        return -operand if isinstance(node.op, ast.USub) else int(not operand)
    if isinstance(node, ast.BoolOp):
        operands = [_compute(operand, values, depth + 1) for operand in node.values]
        known = [operand for operand in operands if operand is not None]
        if len(known) < len(operands):
            return None
        return int(all(known) if isinstance(node.op, ast.And) else any(known))
    if isinstance(node, ast.BinOp):
        return _operate(type(node.op), node.left, node.right, values, depth)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _operate(type(node.ops[0]), node.left, node.comparators[0], values, depth)
    raise ValueError("not arithmetic")


def _operate(
    kind: type, left: ast.expr, right: ast.expr, values: Mapping[str, tuple[str, ...]], depth: int
) -> int | None:
    operation = _OPERATIONS.get(kind)
    if operation is None:
        raise ValueError("not arithmetic of a shell")
    first, second = _compute(left, values, depth + 1), _compute(right, values, depth + 1)
    return None if first is None or second is None else _bounded(int(operation(first, second)))


def _variable(name: str, values: Mapping[str, tuple[str, ...]]) -> int | None:
    text = values.get(name, ("",))
    return (
        _bounded(int(text[0])) if len(text) == 1 and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text[0]) else None
    )


def _bounded(number: int) -> int:
    if abs(number) >= _LIMIT:
        raise ValueError("beyond 64 bits")
    return number
