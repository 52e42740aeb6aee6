"""Collectives that several rank groups run alike, told once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.app.pages.facts import Facts

_ALIKE = (
    "block",
    "phase",
    "operation",
    "route",
    "wire",
    "compress",
    "is_sealed",
    "bucket_bytes",
    "reason",
    "decided_by",
)
"""What rank groups share when they run the same collective, besides axes and levels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedCollective:
    """One collective of a plan as every rank group runs it.

    Args:
        facts: Of the first rank group that runs it.
        groups: Names of the rank groups that do.
        runs_per_step: Of the group that runs it most.
        rank_bytes: By level, the most that one rank sends in a step.
        all_bytes: By level, what all ranks send in a step.
        seconds: That one run takes where it takes longest; None if not known.
    """

    facts: Facts
    groups: tuple[str, ...]
    runs_per_step: float
    rank_bytes: Mapping[str, int]
    all_bytes: Mapping[str, int]
    seconds: float | None

    @property
    def axes(self) -> str:
        """The axes that it runs over, with their sizes."""
        return ", ".join(f"{axis['axis']} {axis['size']}" for axis in self.facts["axes"])

    @property
    def axis_names(self) -> str:
        """The axes alone."""
        return ", ".join(axis["axis"] for axis in self.facts["axes"])


def merged_collectives(groups: Sequence[Facts]) -> tuple[MergedCollective, ...]:
    """The collectives of all rank groups, in the order of the step; equal ones of one group stay apart."""
    found: dict[tuple[Any, ...], list[tuple[str, Facts]]] = {}
    for group in groups:
        seen: dict[tuple[Any, ...], int] = {}
        for facts in group["collectives"]:
            key = _key(facts)
            seen[key] = seen.get(key, 0) + 1
            found.setdefault((*key, seen[key]), []).append((group["name"], facts))
    merged = (_merged(members) for members in found.values())
    return tuple(sorted(merged, key=lambda collective: _order(collective.facts)))


def _key(facts: Facts) -> tuple[Any, ...]:
    axes = tuple(axis["axis"] for axis in facts["axes"])
    return (*(facts[name] for name in _ALIKE), axes, tuple(facts["levels"]))


def _merged(members: Sequence[tuple[str, Facts]]) -> MergedCollective:
    all_facts = [facts for _, facts in members]
    seconds = [facts["seconds"] for facts in all_facts if facts["seconds"] is not None]
    return MergedCollective(
        facts=all_facts[0],
        groups=tuple(name for name, _ in members),
        runs_per_step=max(facts["runs_per_step"] for facts in all_facts),
        rank_bytes=_by_level(max, (facts["rank_bytes"] for facts in all_facts)),
        all_bytes=_by_level(sum, (facts["group_bytes"] for facts in all_facts)),
        seconds=max(seconds, default=None),
    )


def _by_level(choose: Callable[[Iterable[int]], int], sent: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    levels = list(sent)
    return {level: choose(bytes_of[level] for bytes_of in levels) for level in levels[0]}


_PLACES = {"embedding": 0, "head": 2, "update": 3, "pipeline": 4}
"""Where blocks stand in the order of a step; those of layers between embedding and head."""


def _order(facts: Facts) -> int:
    return _PLACES.get(facts["block"], 1)
