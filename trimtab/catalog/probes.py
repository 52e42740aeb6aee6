"""What was measured of a machine: its map, which a planner reads in place of data sheets."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trimtab.catalog.errors import ProbeError

VERSION = 2
"""Of the document; another one is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two ranks that sent each other messages, nobody else at work.

    Args:
        latency_s: Of an empty message, one way.
        bytes_per_s: Of a large one.
    """

    first: int
    second: int
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTime:
    """A collective in a group of neighbours, all groups of that size at once.

    Args:
        name: ``all_reduce``, ``all_gather``, ``reduce_scatter`` or ``all_to_all``.
        ranks: In the group.
        size_bytes: Of the whole vector, which each rank has or gets, or of which it gets its piece.
        seconds: After a barrier, least of several, on the slowest rank.
    """

    name: str
    ranks: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedRun:
    """Some real steps of a small network.

    Args:
        name: Of its layout, for people.
        columns: Its plan, as closed forms see it.
        step_s: Median of its steps, on the slower rank.
    """

    name: str
    columns: Mapping[str, float]
    step_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One machine, all ranks at work at once unless a field says otherwise.

    Args:
        taken_at: In ISO form.
        versions: Of what decides speed, by name.
        compute: Type of the products.
        num_devices: Ranks.
        memory_bytes: Of one rank.
        flops_per_s: Of the best product, by rank.
        memory_bytes_per_s: Of a copy, read and written bytes together, by rank.
        attention_flops_per_s: Of causal attention forwards, by rank; FLOPs of the triangle only.
        kernel_s: Of an operator on next to nothing: what each launch costs.
        start_s: Of a collective of next to nothing between computing.
        link_bytes_per_s: Of a large collective, each rank's.
        collectives: By kind, group and size.
        pairs: Of ranks.
        runs: Real steps.
    """

    taken_at: str
    versions: Mapping[str, str]
    compute: str
    num_devices: int
    memory_bytes: int
    flops_per_s: tuple[float, ...]
    memory_bytes_per_s: tuple[float, ...]
    attention_flops_per_s: tuple[float, ...]
    kernel_s: float
    start_s: float
    link_bytes_per_s: float
    collectives: tuple[CollectiveTime, ...]
    pairs: tuple[Pair, ...]
    runs: tuple[ProbedRun, ...]

    @property
    def slow_ranks(self) -> tuple[int, ...]:
        """Whose products take a fifth longer than those of the median rank."""
        median = sorted(self.flops_per_s)[len(self.flops_per_s) // 2]
        return tuple(rank for rank, rate in enumerate(self.flops_per_s) if rate * _SLOWER < median)

    def document(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"version": VERSION, **asdict(self)}


_SLOWER = 1.2


def read_probe(text: str, *, source: str) -> Probe:
    """The probe that a document holds.

    Args:
        text: JSON, as ``Probe.document`` gives it.
        source: What errors call it.

    Raises: ProbeError if it is none, or one of another version.
    """
    try:
        found = json.loads(text)
        version = found.pop("version")
        if version != VERSION:
            raise ProbeError(
                f"{source}: a probe of version {version}; this Trimtab reads version {VERSION}: trimtab probe takes one"
            )
        return Probe(
            **{
                **found,
                "flops_per_s": tuple(found["flops_per_s"]),
                "memory_bytes_per_s": tuple(found["memory_bytes_per_s"]),
                "attention_flops_per_s": tuple(found["attention_flops_per_s"]),
                "collectives": tuple(CollectiveTime(**time) for time in found["collectives"]),
                "pairs": tuple(Pair(**pair) for pair in found["pairs"]),
                "runs": tuple(ProbedRun(**run) for run in found["runs"]),
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProbeError(
            f"{source}: not a probe of a machine ({error}); trimtab probe --out FILE writes one"
        ) from error
