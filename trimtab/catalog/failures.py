"""How often do nodes fail, and how? Mixtures of faults by the name of whoever published them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from trimtab.catalog.errors import FailuresError, UnknownNameError
from trimtab.catalog.tables import toml_table
from trimtab.terms import nearest_name

MOST_PER_1000_NODE_DAYS = 1e5
"""A hundred faults of each node in a day: with more, nothing is trained, and nothing is simulated."""

_FILE = "failures.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureMixture:
    """The faults of a cluster, whoever they hit and whatever they cost.

    Args:
        name: Of the mixture.
        source: Where the rate comes from.
        covers: What it counts.
        per_1000_node_days: Faults of 1,000 nodes in a day, bursts counted once.
        hangs: Part of the faults that give no error: the rank stops.
        corruption: Part that give no error and spoil numbers.
        storage: Part that spoil the save under way and lose no node.
        shape: Of the Weibull law of the time between two faults of the cluster; 1 has no memory.
        lemons: Part of the nodes that are worse than the others.
        lemon_part: Part of the faults that they bring.
        bursts: Part of the faults that take several neighbours.
        burst_nodes: How many.

    Raises: FailuresError for a rate or a shape that cannot be, a part outside 0 to 1, parts of one whole that exceed it, or
        a burst of less than two nodes.
    """

    name: str
    source: str
    covers: str
    per_1000_node_days: float
    hangs: float = 0.0
    corruption: float = 0.0
    storage: float = 0.01
    shape: float = 0.7
    lemons: float = 0.05
    lemon_part: float = 0.5
    bursts: float = 0.011
    burst_nodes: int = 5

    def __post_init__(self) -> None:
        """Refuse what is no mixture."""
        for key in ("hangs", "corruption", "storage", "lemons", "lemon_part", "bursts"):
            self._refuse_unless(0 <= getattr(self, key) <= 1, key, "a part, from 0 to 1")
        rate_is_right = 0 <= self.per_1000_node_days <= MOST_PER_1000_NODE_DAYS
        self._refuse_unless(rate_is_right, "per_1000_node_days", f"0 to {MOST_PER_1000_NODE_DAYS:g}")
        self._refuse_unless(0.1 <= self.shape <= 10, "shape", "0.1 to 10")
        self._refuse_unless(self.burst_nodes >= 2, "burst_nodes", "2 or more")
        silent = self.hangs + self.corruption + self.storage
        if silent > 1:
            raise FailuresError(
                f"failures {self.name}: hangs, corruption and storage are parts of one whole and come to {silent:g}; "
                "they may come to 1"
            )

    def _refuse_unless(self, is_right: bool, key: str, required: str) -> None:
        if not is_right:
            raise FailuresError(f"failures {self.name}: {key} is {getattr(self, key):g}; it takes {required}")

    def mean_gap_s(self, num_nodes: int) -> float:
        """Mean seconds between two faults of so many nodes; infinite if nothing fails."""
        per_day = self.per_1000_node_days * num_nodes / 1000
        return 86_400 / per_day if per_day else float("inf")


def failure_mixture(name: str) -> FailureMixture:
    """A mixture of the catalog.

    Raises: UnknownNameError; the message lists what there is.
    """
    tables = toml_table(_FILE)
    if name not in tables:
        raise UnknownNameError("failures", name, tables)
    return mixture_of(name, tables[name])


def failure_mixture_names() -> list[str]:
    """What ``failure_mixture`` knows."""
    return sorted(toml_table(_FILE))


def mixture_of(name: str, table: Mapping[str, object]) -> FailureMixture:
    """The mixture that a table of a TOML file states.

    Raises: FailuresError for a key that there is not, one that is missing, or a value of the wrong type.
    """
    kinds = {field.name: field.type for field in fields(FailureMixture) if field.name != "name"}
    for key, value in table.items():
        if key not in kinds:
            nearest = nearest_name(key, kinds)
            question = f"  Did you mean {nearest!r}?" if nearest else ""
            raise FailuresError(f"failures {name}: unknown key {key!r}; known: {', '.join(kinds)}.{question}")
        _refuse_type(name, key, value, kinds[key])
    missing = [key for key in ("source", "covers", "per_1000_node_days") if key not in table]
    if missing:
        raise FailuresError(f"failures {name}: {missing[0]} is missing")
    return FailureMixture(name=name, **table)  # type: ignore[arg-type]  # each was checked above


def _refuse_type(name: str, key: str, value: object, kind: object) -> None:
    taken = {str: (str,), float: (int, float), int: (int,)}[kind]  # type: ignore[index]  # fields have these types only
    if isinstance(value, bool) or not isinstance(value, taken):
        raise FailuresError(
            f"failures {name}: {key} is {value!r}; it takes {'text' if kind is str else 'a number'}"
        )
