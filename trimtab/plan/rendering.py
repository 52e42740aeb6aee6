"""A physical program as text, one operator a line: for reviews, goldens and curious users."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from trimtab.plan.physical import Plan
from trimtab.plan.program import Block, Operator, Transfer, Value


def render_program(plan: Plan) -> str:
    """Every block and the update; values with the types that they have."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    for block in plan.blocks:
        yield from _block(block)
    yield "update"
    yield from _operators(plan.update.operators, plan.update.values)


def _block(block: Block) -> Iterator[str]:
    yield block.name
    for title, operators in (
        ("gather", block.gathers),
        ("forward", block.forward),
        ("recompute", block.recompute),
        ("backward", block.backward),
    ):
        if operators:
            yield f"  {title}"
            yield from _operators(operators, block.values, indent="    ")
    yield f"  keeps {', '.join(block.kept)}"


def _operators(
    operators: Iterable[Operator], values: Mapping[str, Value], indent: str = "  "
) -> Iterator[str]:
    for operator in operators:
        parameters = f" with {_named(operator.parameters)}" if operator.parameters else ""
        yield (
            f"{indent}{_typed(operator.outputs, values)} = {operator.kind.value} {_named(operator.inputs)}"
            f"{parameters}{_sent(operator)}"
        )
        for groups, transfer in operator.variants:
            yield f"{indent}  groups {', '.join(map(str, groups))}: {_transfer(transfer)}"


def _typed(names: Sequence[str], values: Mapping[str, Value]) -> str:
    """The first value with its type, and how many more there are.

    Tensors that travel together have a type each; the first tells what the operator does.
    """
    if not names:
        return "-"
    first = f"{names[0]} [{values[names[0]].placements}]"
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= MAX_NAMES else f"{names[0]} and {len(names) - 1} more"


MAX_NAMES = 4
"""Names that a line lists; more are counted."""


def _sent(operator: Operator) -> str:
    if operator.transfer is not None:
        return f"; {_transfer(operator.transfer)}; {operator.because}"
    return f"; cut over {', '.join(operator.cuts)}; {operator.because}" if operator.cuts else ""


def _transfer(transfer: Transfer) -> str:
    """``over dp by ring in fp32``."""
    levels = f"({', '.join(transfer.levels)})" if transfer.levels else ""
    text = f"over {', '.join(transfer.axes)} by {transfer.route}{levels} in {transfer.wire}"
    if transfer.compress != "none":
        argument = "" if transfer.compress_argument is None else f"({transfer.compress_argument:g})"
        text += f", {transfer.compress}{argument}"
    if transfer.operation != "sum":
        text += f", {transfer.operation}"
    if transfer.stages:
        text += f", stages {' and '.join(map(str, transfer.stages))}"
    return text + (", sealed" if transfer.is_sealed else "")
