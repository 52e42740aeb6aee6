"""Random programs as syntax trees, driven by a Random: what property tests and the fuzz are fed with.

With `sensible` words every name is one of the language and most values are allowed, so that many programs
pass the checks of names; without, names and texts are arbitrary.
"""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from trimtab.spec.language import (
    NOWHERE,
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
    Expression,
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
    Program,
    RecomputeStatement,
    ReduceStatement,
    SealStatement,
    SplitStatement,
    Statement,
    StoreStatement,
    UseStatement,
    preset,
    preset_names,
)
from trimtab.spec.language.tokens import MAX_INTEGER
from trimtab.spec.language.vocabulary import (
    AVERAGES,
    BALANCES,
    CHANGES,
    COMPRESSIONS,
    DEVICE_COLUMNS,
    DIMS,
    HOMES,
    KEYWORDS,
    LEVELS,
    ROUTES,
    SEQUENCE_WAYS,
    STAGE_SCHEDULES,
    TABLE_COLUMNS,
    TYPES,
    ColumnType,
    Function,
    ValueKind,
)

T = TypeVar("T")

AXES = ("dp", "tp", "pp", "cp", "ep", "site")
KINDS = ("embedding", "norm", "linear", "head", "expert", "router", "residual", "attention")


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Makes random programs.

    Args:
        random: Where chance comes from.
        sensible: Whether words are those of the language.
    """

    random: Random
    sensible: bool = True

    def program(self, most: int = 6) -> Program:
        """A program of up to so many statements, none of them USE."""
        statements = [self.statement() for _ in range(self.random.randint(0, most))]
        if self.sensible and self.random.random() < 0.8:
            statements = [s for s in statements if not isinstance(s, MeshStatement)]
            statements.insert(0, self.mesh())
        return Program(statements=tuple(statements))

    def statement(self) -> Statement:
        """Any statement but USE."""
        makers: Sequence[Callable[[], Statement]] = (
            self.mesh, self.split, self.place, self.store, self.reduce, self.average, self.recompute,
            self.offload, self.keep, self.compute, self.seal,
        )  # fmt: skip
        return self.random.choice(makers)()

    def use(self) -> UseStatement:
        """A preset with some of its parameters set; not sensible: any text and any arguments."""
        if not self.sensible:
            arguments = [self._argument(self.word(), self.value()) for _ in range(self.random.randint(0, 2))]
            return UseStatement(preset=literal(self.text()), arguments=tuple(arguments), span=NOWHERE)
        chosen = preset(self.random.choice(preset_names()))
        names = [name for name in chosen.parameters if self.random.random() < 0.5]
        arguments = [self._argument(name, chosen.parameters[name]) for name in names]
        return UseStatement(preset=literal(chosen.name), arguments=tuple(arguments), span=NOWHERE)

    def mesh(self) -> MeshStatement:
        """Every axis once if sensible, one of them taking the rest; 32 devices or a multiple always fit."""
        axes = self.random.sample(AXES, k=len(AXES)) if self.sensible else self.some(self.word)
        star = self.random.randrange(len(axes))
        return MeshStatement(
            axes=tuple(
                AxisSize(
                    axis=name(axis),
                    size=None if index == star else self.random.choice((1, 1, 2)),
                    within=self.maybe(lambda: self.one_of(LEVELS), 0.1),
                    span=NOWHERE,
                )
                for index, axis in enumerate(axes)
            ),
            span=NOWHERE,
        )

    def split(self) -> SplitStatement:
        """A split with the clauses that its dim may have, if sensible."""
        if not self.sensible:
            return self._any_split()
        kind = self.random.choice(("plain", "sequence", "layers"))
        dims = self.some(lambda: name(self.random.choice(DIMS))) if kind == "plain" else (name(kind),)
        using = None
        if kind != "plain":
            using = self.maybe(lambda: self.call(SEQUENCE_WAYS if kind == "sequence" else STAGE_SCHEDULES))
        return SplitStatement(
            dims=dims,
            table=self.maybe(lambda: self.table("SPLIT"), 0.3),
            where=self.maybe(self.where, 0.3),
            axes=self.axes(),
            using=using,
            microbatches=self.maybe(lambda: self.random.randint(1, 16)) if kind == "layers" else None,
            balance=self.maybe(lambda: self.one_of(BALANCES)) if kind == "layers" else None,
            on=self.maybe(self.on, 0.2),
            if_any=self.flag(),
            span=NOWHERE,
        )

    def _any_split(self) -> SplitStatement:
        return SplitStatement(
            dims=self.some(lambda: name(self.word())),
            table=self.maybe(lambda: self.table("SPLIT")),
            where=self.maybe(self.where),
            axes=self.axes(),
            using=self.maybe(lambda: self.call(SEQUENCE_WAYS)),
            microbatches=self.maybe(self.count),
            balance=self.maybe(lambda: self.one_of(BALANCES)),
            on=self.maybe(self.on),
            if_any=self.flag(),
            span=NOWHERE,
        )

    def place(self) -> PlaceStatement:
        """PLACE, by a range of layers or by a condition."""
        return PlaceStatement(
            table=self.table("PLACE"),
            where=self.maybe(self._layers, 0.6) or self.maybe(self.where),
            axis=self.axis(),
            index=0 if self.sensible else self.count(),
            if_any=self.flag(),
            span=NOWHERE,
        )

    def _layers(self) -> Expression:
        return Between(
            operand=column("layer"), low=literal(self.count()), high=literal(self.count()), span=NOWHERE
        )

    def store(self) -> StoreStatement:
        """STORE."""
        return StoreStatement(
            tables=self.tables("STORE"),
            where=self.maybe(self.where, 0.4),
            axes=self.axes(),
            on=self.maybe(self.on, 0.2),
            if_any=self.flag(),
            span=NOWHERE,
        )

    def reduce(self) -> ReduceStatement:
        """REDUCE."""
        return ReduceStatement(
            table=self.table("REDUCE"),
            where=self.maybe(self.where),
            axes=self.axes(),
            using=self.maybe(lambda: self.call(ROUTES)),
            bucket_bytes=self.maybe(self.size, 0.3),
            compress=self.maybe(lambda: self.call(COMPRESSIONS), 0.3),
            wire=self.maybe(lambda: self.one_of(TYPES), 0.3),
            on=self.maybe(self.on, 0.2),
            if_any=self.flag(),
            span=NOWHERE,
        )

    def average(self) -> AverageStatement:
        """AVERAGE."""
        return AverageStatement(
            table=self.table("AVERAGE"),
            where=self.maybe(self.where, 0.3),
            axes=self.axes(),
            every=max(1, self.count()) if self.sensible else self.count(),
            using=self.maybe(lambda: self.call(AVERAGES)),
            compress=self.maybe(lambda: self.call(COMPRESSIONS), 0.3),
            wire=self.maybe(lambda: self.one_of(TYPES), 0.3),
            on=self.maybe(self.on, 0.2),
            if_any=self.flag(),
            span=NOWHERE,
        )

    def recompute(self) -> RecomputeStatement:
        """RECOMPUTE."""
        return RecomputeStatement(
            table=self.table("RECOMPUTE"),
            where=self.maybe(self.where),
            on=self.maybe(self.on, 0.2),
            if_any=self.flag(),
            span=NOWHERE,
        )

    def offload(self) -> OffloadStatement:
        """OFFLOAD."""
        return OffloadStatement(
            tables=self.tables("OFFLOAD"),
            where=self.maybe(self.where),
            to=self.one_of(HOMES),
            on=self.maybe(self.on, 0.2),
            if_any=self.flag(),
            span=NOWHERE,
        )

    def keep(self) -> KeepStatement:
        """KEEP."""
        return KeepStatement(
            tables=self.tables("KEEP"),
            where=self.maybe(self.where),
            dtype=self.one_of(TYPES),
            if_any=self.flag(),
            span=NOWHERE,
        )

    def compute(self) -> ComputeStatement:
        """COMPUTE."""
        return ComputeStatement(
            table=self.table("COMPUTE"),
            where=self.maybe(self.where),
            dtype=self.one_of(TYPES),
            if_any=self.flag(),
            span=NOWHERE,
        )

    def seal(self) -> SealStatement:
        """SEAL."""
        return SealStatement(
            tables=self.tables("SEAL"),
            where=self.maybe(self.where),
            axes=self.axes(),
            on=self.maybe(self.on, 0.2),
            if_any=self.flag(),
            span=NOWHERE,
        )

    # Conditions.

    def where(self) -> Expression:
        """A condition over rows."""
        return self.condition(TABLE_COLUMNS, depth=3)

    def on(self) -> Expression:
        """A condition over devices."""
        return self.condition(DEVICE_COLUMNS, depth=1)

    def condition(self, columns: dict[str, ColumnType], depth: int) -> Expression:
        """A condition with up to so many levels of AND, OR and NOT."""
        if depth > 0 and self.random.random() < 0.45:
            return self._logic(columns, depth)
        kind = self.random.choice(tuple(ColumnType))
        operand = self.operand(columns, kind, depth=2)
        is_negated = self.flag()
        form = self.random.choice(("comparison", "in", "like", "between", "null"))
        if form == "like" and (kind is ColumnType.TEXT or not self.sensible):
            return Like(operand=operand, pattern=literal(self.text()), is_negated=is_negated, span=NOWHERE)
        if form == "in":
            items = self.some(lambda: literal(self.constant(kind)))
            return InList(operand=operand, items=items, is_negated=is_negated, span=NOWHERE)
        if form == "between":
            low, high = (self.operand(columns, kind, depth=1) for _ in range(2))
            return Between(operand=operand, low=low, high=high, is_negated=is_negated, span=NOWHERE)
        if form == "null":
            return IsNull(operand=operand, is_negated=is_negated, span=NOWHERE)
        right = self.operand(columns, kind, depth=2)
        operator = self.random.choice(tuple(Comparator))
        return Comparison(operator=operator, left=operand, right=right, span=NOWHERE)

    def _logic(self, columns: dict[str, ColumnType], depth: int) -> Expression:
        form = self.random.choice((And, Or, Not))
        if form is Not:
            return Not(operand=self.condition(columns, depth - 1), span=NOWHERE)
        operands = [self.condition(columns, depth - 1) for _ in range(self.random.randint(2, 3))]
        # The tree of a chain is flat: an AND has no AND among its operands.
        flat = [inner for one in operands for inner in (one.operands if isinstance(one, form) else (one,))]
        return form(operands=tuple(flat), span=NOWHERE)

    def operand(self, columns: dict[str, ColumnType], kind: ColumnType, depth: int) -> Expression:
        """A value of a type; not sensible: of any."""
        if depth > 0 and kind is ColumnType.NUMBER and self.random.random() < 0.3:
            left, right = (self.operand(columns, kind, depth - 1) for _ in range(2))
            operator = self.random.choice(tuple(Operator))
            return Arithmetic(operator=operator, left=left, right=right, span=NOWHERE)
        if self.random.random() < 0.6:
            if not self.sensible:
                return column(self.word())
            return column(self.random.choice([name for name, found in columns.items() if found is kind]))
        return literal(self.constant(kind))

    def constant(self, kind: ColumnType) -> int | float | str:
        """A value to compare with."""
        if not self.sensible:
            return self.value()
        if kind is ColumnType.TEXT:
            return self.random.choice((*KINDS, "vocab,embed", "%weight", "layers.1.%", "_", "bf16"))
        return self.random.choice((0, 1, 2, 3, 7, 128, 0.5, -1, 2.25))

    # Words and values.

    def call(self, functions: Sequence[Function]) -> Call:
        """A function with arguments of the right kinds; not sensible: any word and any arguments."""
        if not self.sensible:
            arguments = tuple(literal(self.value()) for _ in range(self.random.randint(0, 3)))
            called = self.random.choice((self.word(), "1f1b", "2x"))
            return Call(name=name(called), arguments=arguments, span=NOWHERE)
        function = self.random.choice(functions)
        values = [literal(self.argument(kind)) for _, kind in function.parameters]
        return Call(name=name(function.name), arguments=tuple(values), span=NOWHERE)

    def argument(self, kind: ValueKind) -> int | float | str:
        """An argument that a function takes."""
        match kind:
            case ValueKind.COUNT:
                return self.random.randint(1, 8)
            case ValueKind.LEVEL:
                return self.random.choice(LEVELS)
            case _:
                return self.random.choice((0.01, 0.5, 0.9))

    def table(self, verb: str) -> Name:
        """A table that a verb takes."""
        return self.one_of(CHANGES[verb].tables)

    def tables(self, verb: str) -> tuple[Name, ...]:
        """Tables that a verb takes, each once if sensible."""
        if not self.sensible:
            return self.some(lambda: name(self.word()))
        return tuple(map(name, self._sample(CHANGES[verb].tables)))

    def axis(self) -> Name:
        """An axis of the mesh."""
        return self.one_of(AXES)

    def axes(self) -> tuple[Name, ...]:
        """Axes of the mesh, each once if sensible."""
        return tuple(map(name, self._sample(AXES))) if self.sensible else self.some(self.axis)

    def one_of(self, words: Sequence[str]) -> Name:
        """One of the words; not sensible: any word."""
        return name(self.random.choice(words) if self.sensible else self.word())

    def word(self) -> str:
        """Any word that is not reserved."""
        letters = self.random.choices(string.ascii_letters + string.digits + "_", k=self.random.randint(1, 6))
        found = "".join(letters).lstrip(string.digits) or "x"
        return f"{found}_" if found.upper() in KEYWORDS else found

    def text(self) -> str:
        """Any text on one line, quotes and what begins a comment among it."""
        alphabet = string.ascii_letters + " %_'-;(),.$\\éß漢\t"
        return "".join(self.random.choices(alphabet, k=self.random.randint(0, 8)))

    def value(self) -> int | float | str:
        """Any value."""
        number = self.random.choice(
            (self.count(), -self.count(), MAX_INTEGER, self.random.uniform(-1e6, 1e6), 1e-7, 2.5e300)
        )
        return self.random.choice((number, self.text()))

    def count(self) -> int:
        """A whole number of at least 0, mostly small."""
        return self.random.choice((0, 1, 2, 3, 8, 64, self.random.randint(0, MAX_INTEGER)))

    def size(self) -> int:
        """Bytes: round ones in both systems of units, and odd ones."""
        return self.random.choice((1, 7, 25_000_000, 2**20, 3 * 2**30, 1_500, self.random.randint(1, 2**60)))

    def flag(self) -> bool:
        """Seldom true."""
        return self.random.random() < 0.2

    def maybe(self, make: Callable[[], T], chance: float = 0.5) -> T | None:
        """A value, or None."""
        return make() if self.random.random() < chance else None

    def some(self, make: Callable[[], T]) -> tuple[T, ...]:
        """One to three values."""
        return tuple(make() for _ in range(self.random.randint(1, 3)))

    def _sample(self, words: Sequence[str]) -> list[str]:
        return self.random.sample(list(words), k=self.random.randint(1, min(3, len(words))))

    @staticmethod
    def _argument(parameter: str, value: int | float | str) -> Argument:
        return Argument(name=name(parameter), value=literal(value), span=NOWHERE)


def name(text: str) -> Name:
    """A name that stands nowhere."""
    return Name(text=text, span=NOWHERE)


def literal(value: int | float | str) -> Literal:
    """A value that stands nowhere."""
    return Literal(value=value, span=NOWHERE)


def column(text: str) -> Column:
    """A column that stands nowhere."""
    return Column(name=name(text), span=NOWHERE)
