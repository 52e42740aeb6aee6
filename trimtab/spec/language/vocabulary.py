"""The words of the strategy language that name something, and what the functions among them take."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

TABLES = ("params", "grads", "states", "activations", "layers", "experts")
"""What statements speak of."""

DIMS = ("batch", "sequence", "embed", "heads", "kv_heads", "mlp", "vocab", "layers", "experts")
"""What a tensor can be split by."""

TYPES = ("fp32", "bf16", "fp16", "fp8")
"""Types of elements: as stored, as computed with, as sent."""

LEVELS = ("node", "rack", "site")
"""Places that hold devices, smallest first."""

BALANCES = ("layers", "params", "time")
"""What the stages of a pipeline can be made equal in."""

HOMES = ("host",)
"""Where a table can wait outside its device."""


class ColumnType(StrEnum):
    """What a column holds, besides NULL."""

    NUMBER = "a number"
    TEXT = "text"


TABLE_COLUMNS: Mapping[str, ColumnType] = {
    "name": ColumnType.TEXT,
    "layer": ColumnType.NUMBER,
    "kind": ColumnType.TEXT,
    "dims": ColumnType.TEXT,
    "shape": ColumnType.TEXT,
    "numel": ColumnType.NUMBER,
    "bytes": ColumnType.NUMBER,
    "dtype": ColumnType.TEXT,
    "stage": ColumnType.NUMBER,
    "expert": ColumnType.NUMBER,
}
"""Columns of every table; ``layer``, ``stage`` and ``expert`` are NULL where there is none."""

DEVICE_COLUMNS: Mapping[str, ColumnType] = {
    "rank": ColumnType.NUMBER,
    "node": ColumnType.NUMBER,
    "rack": ColumnType.NUMBER,
    "site": ColumnType.NUMBER,
    "class": ColumnType.TEXT,
    "memory": ColumnType.NUMBER,
}
"""Columns of the devices: places count from 0, ``class`` is such as ``'A100'``, ``memory`` is in bytes."""


class ValueKind(StrEnum):
    """What an argument of a function may be."""

    COUNT = "a whole number of at least 1"
    FRACTION = "a number above 0 and at most 1"
    MOMENTUM = "a number of at least 0 and below 1"
    LEVEL = "a level"


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """A word after USING or COMPRESS, and what stands in its parentheses.

    Args:
        name: As written.
        parameters: Name and kind of each argument; all are required.
        is_repeated: Whether the last parameter may be given several times.
    """

    name: str
    parameters: tuple[tuple[str, ValueKind], ...] = ()
    is_repeated: bool = False

    def __str__(self) -> str:
        """``hierarchical(level, ...)``, as errors list it."""
        names = [name for name, _ in self.parameters] + ["..."] * self.is_repeated
        return f"{self.name}({', '.join(names)})" if names else self.name


_NUM_CHUNKS = (("stages", ValueKind.COUNT),)

SEQUENCE_WAYS = (Function(name="ulysses"), Function(name="allgather"), Function(name="ring"))
"""How attention sees a sequence that is split."""

STAGE_SCHEDULES = (
    Function(name="gpipe"),
    Function(name="1f1b"),
    Function(name="interleaved_1f1b", parameters=_NUM_CHUNKS),
    Function(name="looped_bfs", parameters=_NUM_CHUNKS),
    Function(name="interleaved_zero_bubble", parameters=_NUM_CHUNKS),
    Function(name="zbv"),
    Function(name="dualpipev"),
)
"""Order of the microbatches in a pipeline; ``stages`` is how many stages each place of the axis holds."""

TWO_STAGE_SCHEDULES = frozenset({"zbv", "dualpipev"})
"""Schedules that fold the stages into a V: each place of the axis holds two, one on the way back."""

ROUTES = (
    Function(name="native"),
    Function(name="ring"),
    Function(name="tree"),
    Function(name="recursive_doubling"),
    Function(name="reduce_scatter"),
    Function(name="hierarchical", parameters=(("level", ValueKind.LEVEL),), is_repeated=True),
    Function(name="default"),
)
"""How a sum travels; ``default`` takes back what an earlier statement said."""

AVERAGES = (
    Function(name="mean"),
    Function(name="nesterov", parameters=(("momentum", ValueKind.MOMENTUM),)),
)
"""How replicas take in their average."""

COMPRESSIONS = (
    Function(name="none"),
    Function(name="bf16"),
    Function(name="int8"),
    Function(name="topk", parameters=(("fraction", ValueKind.FRACTION),)),
    Function(name="powersgd", parameters=(("rank", ValueKind.COUNT),)),
)
"""How what is sent is made smaller; ``none`` takes back what an earlier statement said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """A statement other than MESH and USE: what may stand in it.

    Args:
        tables: The tables that it may speak of.
        clauses: Clauses that it may have, in canonical order.
        required: Clauses that it must have.
    """

    tables: tuple[str, ...]
    clauses: tuple[str, ...]
    required: tuple[str, ...] = ()


_STORED = ("params", "grads", "states", "activations")

CHANGES: Mapping[str, Verb] = {
    "SPLIT": Verb(
        tables=("params", "activations"),
        clauses=("OF", "WHERE", "OVER", "USING", "MICROBATCHES", "BALANCE", "ON", "IF"),
        required=("OVER",),
    ),
    "PLACE": Verb(
        tables=("layers", "experts", "params"),
        clauses=("BETWEEN", "WHERE", "ON", "IF"),
        required=("ON",),
    ),
    "STORE": Verb(
        tables=("params", "grads", "states"), clauses=("WHERE", "OVER", "ON", "IF"), required=("OVER",)
    ),
    "REDUCE": Verb(
        tables=("grads",),
        clauses=("WHERE", "OVER", "USING", "BUCKET", "COMPRESS", "IN", "ON", "IF"),
        required=("OVER",),
    ),
    "AVERAGE": Verb(
        tables=("params", "states"),
        clauses=("WHERE", "OVER", "EVERY", "USING", "COMPRESS", "IN", "ON", "IF"),
        required=("OVER", "EVERY"),
    ),
    "RECOMPUTE": Verb(tables=("activations",), clauses=("WHERE", "ON", "IF")),
    "OFFLOAD": Verb(tables=_STORED, clauses=("WHERE", "TO", "ON", "IF"), required=("TO",)),
    "KEEP": Verb(tables=_STORED, clauses=("WHERE", "IN", "IF"), required=("IN",)),
    "COMPUTE": Verb(tables=("layers",), clauses=("WHERE", "IN", "IF"), required=("IN",)),
    "SEAL": Verb(tables=_STORED, clauses=("WHERE", "OVER", "ON", "IF"), required=("OVER",)),
}
"""Statements that change placements, by their first word."""

VERBS = ("MESH", *CHANGES, "USE")
"""First words of statements."""

CLAUSES = tuple(dict.fromkeys(clause for verb in CHANGES.values() for clause in verb.clauses))
"""First words of clauses."""

KEYWORDS = frozenset(
    (
        *VERBS,
        *CLAUSES,
        "PRESET",
        "WITHIN",
        "STEPS",
        "BY",
        "ANY",
        "AND",
        "OR",
        "NOT",
        "IN",
        "LIKE",
        "IS",
        "NULL",
    )
)
"""Reserved words: nothing can be named so."""
