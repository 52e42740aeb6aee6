"""The syntax tree of the strategy language: what is written, before it is known what it means.

Two trees are equal if they say the same; where it was written does not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from trimtab.terms import Span

NOWHERE = Span(source="", line=1, column=1)
"""The place of what nobody wrote, such as a statement that another framework's settings were turned into."""


# Words and values.


@dataclass(frozen=True, kw_only=True, slots=True)
class Name:
    """A word that the user chose or that names something: an axis, a dim, a table, a route."""

    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Literal:
    """A value as written: ``1``, ``0.7``, ``'text'``; a size such as ``25MB`` is its bytes."""

    value: int | float | str
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """``ring``, ``interleaved_1f1b(2)``, ``hierarchical(node, rack)``: a bare word inside is a text."""

    name: Name
    arguments: tuple[Literal, ...] = ()
    span: Span = field(compare=False)


# Expressions: what stands after WHERE and ON.


class Comparator(StrEnum):
    """How two values are compared; the values are SQL's signs."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="


class Operator(StrEnum):
    """What is done with two numbers; the values are SQL's signs."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    REMAINDER = "%"


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of a table, or of the devices."""

    name: Name
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arithmetic:
    """``layer % 2``: a number made of two."""

    operator: Operator
    left: "Expression"
    right: "Expression"
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """``layer < 4``."""

    operator: Comparator
    left: "Expression"
    right: "Expression"
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class InList:
    """``kind IN ('norm', 'residual')``, or ``NOT IN``."""

    operand: "Expression"
    items: tuple[Literal, ...]
    is_negated: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Like:
    """``name LIKE '%.wo'``, or ``NOT LIKE``: ``%`` is any text, ``_`` any one character."""

    operand: "Expression"
    pattern: Literal
    is_negated: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Between:
    """``layer BETWEEN 0 AND 3``, both ends included, or ``NOT BETWEEN``."""

    operand: "Expression"
    low: "Expression"
    high: "Expression"
    is_negated: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class IsNull:
    """``layer IS NULL``, or ``IS NOT NULL``."""

    operand: "Expression"
    is_negated: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class And:
    """``a AND b AND c``: two operands or more, none of them an And."""

    operands: tuple["Expression", ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Or:
    """``a OR b OR c``: two operands or more, none of them an Or."""

    operands: tuple["Expression", ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Not:
    """``NOT a``."""

    operand: "Expression"
    span: Span = field(compare=False)


Expression: TypeAlias = (
    Column | Literal | Arithmetic | Comparison | InList | Like | Between | IsNull | And | Or | Not
)


# Statements.


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisSize:
    """One axis of a mesh.

    Args:
        axis: Its name.
        size: Devices along it; None for ``*``, what the other axes leave over.
        within: The level of the cluster that the axis must stay inside; None if it may go anywhere.
        span: Name, size and level.
    """

    axis: Name
    size: int | None
    within: Name | None = None
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshStatement:
    """``MESH pp 2, dp *, tp 8 WITHIN node``: the grid of devices; the last axis varies fastest."""

    axes: tuple[AxisSize, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitStatement:
    """``SPLIT heads, mlp OVER tp``: computation divided along dims of tensors over axes.

    Args:
        dims: What is divided.
        table: Whose rows; None for every table that has the dims.
        where: Which rows; None for all.
        axes: Over which axes.
        using: How: a way to split a sequence, a schedule of stages.
        microbatches: Microbatches of one share; with ``SPLIT layers``.
        balance: What stages are balanced by; with ``SPLIT layers``.
        on: Which devices; None for all.
        if_any: Whether the statement may match no row.
        span: The whole statement.
    """

    dims: tuple[Name, ...]
    table: Name | None = None
    where: Expression | None = None
    axes: tuple[Name, ...]
    using: Call | None = None
    microbatches: int | None = None
    balance: Name | None = None
    on: Expression | None = None
    if_any: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceStatement:
    """``PLACE layers BETWEEN 0 AND 3 ON pp 0``: rows put on one place of an axis by hand.

    ``BETWEEN 0 AND 3`` is short for ``WHERE layer BETWEEN 0 AND 3``, and the tree holds the long form.
    """

    table: Name
    where: Expression | None = None
    axis: Name
    index: int
    if_any: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreStatement:
    """``STORE params, grads, states OVER dp``: stored in pieces over axes, gathered before use."""

    tables: tuple[Name, ...]
    where: Expression | None = None
    axes: tuple[Name, ...]
    on: Expression | None = None
    if_any: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReduceStatement:
    """``REDUCE grads OVER dp USING ring BUCKET 25MB``: what is partial is summed over axes.

    Args:
        table: What is summed.
        where: Which rows; None for all.
        axes: Over which axes.
        using: The route; None if not said.
        bucket_bytes: Bytes of gradients reduced in one collective; None if not said.
        compress: How what is sent is made smaller; None if not said.
        wire: The type on the wire; None if not said.
        on: Which devices; None for all.
        if_any: Whether the statement may match no row.
        span: The whole statement.
    """

    table: Name
    where: Expression | None = None
    axes: tuple[Name, ...]
    using: Call | None = None
    bucket_bytes: int | None = None
    compress: Call | None = None
    wire: Name | None = None
    on: Expression | None = None
    if_any: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class AverageStatement:
    """``AVERAGE params OVER site EVERY 64 STEPS USING nesterov(0.7)``: replicas brought together at times.

    Args:
        table: What is averaged.
        where: Which rows; None for all.
        axes: Over which axes.
        every: Steps between two averages.
        using: How the average is taken in; None if not said.
        compress: How what is sent is made smaller; None if not said.
        wire: The type on the wire; None if not said.
        on: Which devices; None for all.
        if_any: Whether the statement may match no row.
        span: The whole statement.
    """

    table: Name
    where: Expression | None = None
    axes: tuple[Name, ...]
    every: int
    using: Call | None = None
    compress: Call | None = None
    wire: Name | None = None
    on: Expression | None = None
    if_any: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputeStatement:
    """``RECOMPUTE activations WHERE layer % 2 = 0``: not kept for the backward pass, computed again."""

    table: Name
    where: Expression | None = None
    on: Expression | None = None
    if_any: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class OffloadStatement:
    """``OFFLOAD states TO host``: kept outside the device while not in use."""

    tables: tuple[Name, ...]
    where: Expression | None = None
    to: Name
    on: Expression | None = None
    if_any: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepStatement:
    """``KEEP states IN fp32``: the type that a table is stored in."""

    tables: tuple[Name, ...]
    where: Expression | None = None
    dtype: Name
    if_any: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeStatement:
    """``COMPUTE layers WHERE layer < 2 IN bf16``: the type that matrix products of layers run in."""

    table: Name
    where: Expression | None = None
    dtype: Name
    if_any: bool = False
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class SealStatement:
    """``SEAL grads OVER site``: encrypted on the wire."""

    tables: tuple[Name, ...]
    where: Expression | None = None
    axes: tuple[Name, ...]
    on: Expression | None = None
    if_any: bool = False
    span: Span = field(compare=False)


Statement: TypeAlias = (
    MeshStatement
    | SplitStatement
    | PlaceStatement
    | StoreStatement
    | ReduceStatement
    | AverageStatement
    | RecomputeStatement
    | OffloadStatement
    | KeepStatement
    | ComputeStatement
    | SealStatement
)
"""What a program consists of once its presets are filled in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Argument:
    """``tp = 8``: the value of a preset's parameter."""

    name: Name
    value: Literal
    span: Span = field(compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class UseStatement:
    """``USE 'megatron-3d'(tp = 8)``: the statements of a preset stand here."""

    preset: Literal
    arguments: tuple[Argument, ...] = ()
    span: Span = field(compare=False)


WrittenStatement: TypeAlias = Statement | UseStatement
"""What a text consists of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Statements in order, presets filled in.

    Args:
        statements: As written; none is a program too, made of defaults.
        documents: The texts that the spans point into, by name; presets that were used are among them.
        uses: For each preset's text, by name, the USE statement that brought it in.
    """

    statements: tuple[Statement, ...] = ()
    documents: Mapping[str, str] = field(default_factory=dict, compare=False)
    uses: Mapping[str, Span] = field(default_factory=dict, compare=False)
