"""What was measured of a machine: its map, which a planner reads in place of data sheets."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trimtab.catalog.errors import ProbeError

VERSION = 1
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
        start_s: Of a collective of next to nothing between computing.
        link_bytes_per_s: Of a large collective, each rank's.
        all_reduce_s: Seconds by bytes.
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
    start_s: float
    link_bytes_per_s: float
    all_reduce_s: Mapping[int, float]
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
                "all_reduce_s": {
                    int(size): float(seconds) for size, seconds in found["all_reduce_s"].items()
                },
                "pairs": tuple(Pair(**pair) for pair in found["pairs"]),
                "runs": tuple(ProbedRun(**run) for run in found["runs"]),
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProbeError(
            f"{source}: not a probe of a machine ({error}); trimtab probe --out FILE writes one"
        ) from error
