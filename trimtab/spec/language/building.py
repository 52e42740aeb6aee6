"""Elements of the syntax tree, put together from the bottom while a statement is read.

The parser calls the method that has the name of the rule, with what the parts of the rule have become.
"""

from typing import Any

from trimtab.spec.language.pieces import (
    Parts,
    Piece,
    chain_piece,
    clause_piece,
    element_piece,
    joined,
    literal_of,
    name_of,
    operator_piece,
    refuse,
    statement_piece,
    whole_number,
)
from trimtab.spec.language.syntax import (
    And,
    Argument,
    Arithmetic,
    AverageStatement,
    AxisSize,
    Between,
    Call,
    Column,
    Comparator,
    Comparison,
    ComputeStatement,
    InList,
    IsNull,
    KeepStatement,
    Like,
    Literal,
    MeshStatement,
    Name,
    Not,
    OffloadStatement,
    Operator,
    Or,
    PlaceStatement,
    RecomputeStatement,
    ReduceStatement,
    SealStatement,
    SplitStatement,
    StoreStatement,
    UseStatement,
)


class Builder:
    """One method for each rule of the grammar."""

    # Statements.

    def statement(self, parts: Parts) -> Any:
        """The tree of the statement: what the parser returns."""
        return parts[0].value

    def mesh(self, parts: Parts) -> Piece:
        """``MESH`` with its axes, and commas between them."""
        axes = tuple(part.value for part in parts[1::2])
        return element_piece(MeshStatement, parts, axes=axes)

    def axis(self, parts: Parts) -> Piece:
        """Name, size and level of one axis; ``WITHIN`` and the level are None if left out."""
        axis, size, _, level = parts
        written = parts if level else parts[:2]
        return element_piece(
            AxisSize,
            written,
            axis=name_of(axis),
            size=None if size.type == "STAR" else whole_number(size),
            within=name_of(level) if level else None,
        )

    def split(self, parts: Parts) -> Piece:
        """``SPLIT dims clauses``."""
        return statement_piece(SplitStatement, parts, dims=parts[1].value)

    def place(self, parts: Parts) -> Piece:
        """``PLACE table clauses``."""
        return statement_piece(PlaceStatement, parts, table=name_of(parts[1]))

    def store(self, parts: Parts) -> Piece:
        """``STORE tables clauses``."""
        return statement_piece(StoreStatement, parts, tables=parts[1].value)

    def reduce(self, parts: Parts) -> Piece:
        """``REDUCE table clauses``."""
        return statement_piece(ReduceStatement, parts, table=name_of(parts[1]))

    def average(self, parts: Parts) -> Piece:
        """``AVERAGE table clauses``."""
        return statement_piece(AverageStatement, parts, table=name_of(parts[1]))

    def recompute(self, parts: Parts) -> Piece:
        """``RECOMPUTE table clauses``."""
        return statement_piece(RecomputeStatement, parts, table=name_of(parts[1]))

    def offload(self, parts: Parts) -> Piece:
        """``OFFLOAD tables clauses``."""
        return statement_piece(OffloadStatement, parts, tables=parts[1].value)

    def keep(self, parts: Parts) -> Piece:
        """``KEEP tables clauses``; here IN names the type of what is stored."""
        return statement_piece(KeepStatement, parts, renamed={"wire": "dtype"}, tables=parts[1].value)

    def compute(self, parts: Parts) -> Piece:
        """``COMPUTE table clauses``; here IN names the type of the computation."""
        return statement_piece(ComputeStatement, parts, renamed={"wire": "dtype"}, table=name_of(parts[1]))

    def seal(self, parts: Parts) -> Piece:
        """``SEAL tables clauses``."""
        return statement_piece(SealStatement, parts, tables=parts[1].value)

    def use(self, parts: Parts) -> Piece:
        """``USE 'preset'(arguments)``."""
        _, preset, arguments = parts
        return element_piece(
            UseStatement,
            parts if arguments else parts[:2],
            preset=literal_of(preset),
            arguments=arguments.value if arguments else (),
        )

    def header(self, parts: Parts) -> Any:
        """``PRESET 'name'(parameters)``, as the USE statement that sets every parameter to its default."""
        return self.use(parts).value

    # Clauses.

    def of(self, parts: Parts) -> Piece:
        """``OF table``."""
        return clause_piece(parts, table=name_of(parts[1]))

    def where(self, parts: Parts) -> Piece:
        """``WHERE expression``."""
        return clause_piece(parts, where=parts[1].value)

    def layers(self, parts: Parts) -> Piece:
        """``BETWEEN low AND high``, short for a condition on the column ``layer``."""
        word, low, _, high = parts
        column = Column(name=Name(text="layer", span=word.span), span=word.span)
        where = element_piece(Between, parts, operand=column, low=literal_of(low), high=literal_of(high))
        return clause_piece(parts, where=where.value)

    def over(self, parts: Parts) -> Piece:
        """``OVER axes``."""
        return clause_piece(parts, axes=parts[1].value)

    def at(self, parts: Parts) -> Piece:
        """``ON axis index``."""
        return clause_piece(parts, axis=name_of(parts[1]), index=whole_number(parts[2]))

    def to(self, parts: Parts) -> Piece:
        """``TO home``."""
        return clause_piece(parts, to=name_of(parts[1]))

    def every(self, parts: Parts) -> Piece:
        """``EVERY n STEPS``."""
        return clause_piece(parts, every=whole_number(parts[1]))

    def using(self, parts: Parts) -> Piece:
        """``USING function``."""
        return clause_piece(parts, using=parts[1].value)

    def bucket(self, parts: Parts) -> Piece:
        """``BUCKET size``; a parameter of a preset comes as a number of bytes."""
        size = parts[1]
        if size.type == "NUMBER" and not size.text.startswith("$"):
            refuse(size, f"found {size.text!r}; expected a size such as 25MB")
        return clause_piece(parts, bucket_bytes=whole_number(size))

    def compress(self, parts: Parts) -> Piece:
        """``COMPRESS function``."""
        return clause_piece(parts, compress=parts[1].value)

    def in_type(self, parts: Parts) -> Piece:
        """``IN type``."""
        return clause_piece(parts, wire=name_of(parts[1]))

    def microbatches(self, parts: Parts) -> Piece:
        """``MICROBATCHES n``."""
        return clause_piece(parts, microbatches=whole_number(parts[1]))

    def balance(self, parts: Parts) -> Piece:
        """``BALANCE BY figure``."""
        return clause_piece(parts, balance=name_of(parts[2]))

    def on(self, parts: Parts) -> Piece:
        """``ON expression``."""
        return clause_piece(parts, on=parts[1].value)

    def if_any(self, parts: Parts) -> Piece:
        """``IF ANY``."""
        return clause_piece(parts, if_any=True)

    # Words and values.

    def names(self, parts: Parts) -> Piece:
        """Names with commas between them."""
        return joined(tuple(name_of(token) for token in parts[::2]), parts)

    def call(self, parts: Parts) -> Piece:
        """A function's name, and its arguments in parentheses; None for each part that is left out."""
        name, parenthesis, *rest = parts
        arguments = tuple(part.value for part in rest[:-1:2] if part) if parenthesis else ()
        return element_piece(
            Call, parts if parenthesis else parts[:1], name=name_of(name), arguments=arguments
        )

    def setting(self, parts: Parts) -> Piece:
        """An argument of a function: a bare word is a text."""
        (part,) = parts
        return part if isinstance(part, Piece) else joined(literal_of(part), parts)

    def arguments(self, parts: Parts) -> Piece:
        """Arguments of a preset in parentheses."""
        return joined(tuple(part.value for part in parts[1:-1:2] if part), parts)

    def argument(self, parts: Parts) -> Piece:
        """``name = value``."""
        name, _, value = parts
        return element_piece(Argument, parts, name=name_of(name), value=value.value)

    def literal(self, parts: Parts) -> Piece:
        """A value, perhaps with a minus before it."""
        *minus, number = parts
        value = -number.value if minus else number.value
        return element_piece(Literal, parts, value=value)

    # Expressions.

    def any_of(self, parts: Parts) -> Piece:
        """Conditions with OR between them."""
        return chain_piece(Or, parts)

    def all_of(self, parts: Parts) -> Piece:
        """Conditions with AND between them."""
        return chain_piece(And, parts)

    def negated(self, parts: Parts) -> Piece:
        """``NOT condition``."""
        return operator_piece(Not, parts, operand=parts[1].value)

    def group(self, parts: Parts) -> Piece:
        """Parentheses, which the tree does not need."""
        inner = parts[1]
        return joined(inner.value, parts, depth=inner.depth)

    def comparison(self, parts: Parts) -> Piece:
        """``left sign right``."""
        left, sign, right = parts
        operator = Comparator("<>" if sign.text == "!=" else sign.text)
        return operator_piece(Comparison, parts, operator=operator, left=left.value, right=right.value)

    def in_list(self, parts: Parts) -> Piece:
        """``operand [NOT] IN (items)``."""
        operand, negation, _, _, *items, _ = parts
        return operator_piece(
            InList,
            parts,
            operand=operand.value,
            items=tuple(item.value for item in items[::2]),
            is_negated=negation is not None,
        )

    def like(self, parts: Parts) -> Piece:
        """``operand [NOT] LIKE pattern``."""
        operand, negation, _, pattern = parts
        return operator_piece(
            Like,
            parts,
            operand=operand.value,
            pattern=literal_of(pattern),
            is_negated=negation is not None,
        )

    def between(self, parts: Parts) -> Piece:
        """``operand [NOT] BETWEEN low AND high``."""
        operand, negation, _, low, _, high = parts
        return operator_piece(
            Between,
            parts,
            operand=operand.value,
            low=low.value,
            high=high.value,
            is_negated=negation is not None,
        )

    def is_null(self, parts: Parts) -> Piece:
        """``operand IS [NOT] NULL``."""
        operand, _, negation, _ = parts
        return operator_piece(IsNull, parts, operand=operand.value, is_negated=negation is not None)

    def arithmetic(self, parts: Parts) -> Piece:
        """``left sign right``."""
        left, sign, right = parts
        return operator_piece(
            Arithmetic, parts, operator=Operator(sign.text), left=left.value, right=right.value
        )

    def column(self, parts: Parts) -> Piece:
        """A name in an expression."""
        return element_piece(Column, parts, name=name_of(parts[0]))
