"""Measures things in turn and says how they compare: ratios of pairs, with minimum, median and maximum.

On a machine that others use too, two figures of different minutes do not compare; two of the same minute do. So
everything that is compared is measured in rounds, every other round in the opposite order, and the ratio is taken
round by round.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One claim: ``ours`` against ``peer``, one figure a round.

    Args:
        at_least, at_most: What the median ratio has to reach; None where nothing is claimed.
    """

    name: str
    unit: str
    ours: Sequence[float]
    peer: Sequence[float]
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ratios(self) -> list[float]:
        """Ours over the peer's, round by round."""
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def is_reached(self) -> bool | None:
        """Whether the median ratio reaches its bar; None without a bar."""
        median = statistics.median(self.ratios)
        if self.at_least is not None:
            return median >= self.at_least
        return None if self.at_most is None else median <= self.at_most

    def document(self) -> dict[str, object]:
        """As JSON can hold it."""
        ratios = self.ratios
        return {
            "name": self.name,
            "unit": self.unit,
            "ours_median": statistics.median(self.ours),
            "peer_median": statistics.median(self.peer),
            "ratio": {"min": min(ratios), "median": statistics.median(ratios), "max": max(ratios)},
            "rounds": len(ratios),
            "at_least": self.at_least,
            "at_most": self.at_most,
            "is_reached": self.is_reached,
        }

    def line(self, width: int) -> str:
        """As a table shows it."""
        ratios = sorted(self.ratios)
        bar = ""
        if self.is_reached is not None:
            bound = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"
            bar = f"{bound}: {'reached' if self.is_reached else 'MISSED'}"
        return (
            f"{self.name:{width}}{statistics.median(self.ours):>12.5g}{statistics.median(self.peer):>12.5g} "
            f"{self.unit:10}{ratios[0]:>8.3f}{statistics.median(ratios):>8.3f}{ratios[-1]:>8.3f}{len(ratios):>4}  {bar}"
        )


def parser(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options that every script has."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--pairs", type=int, default=rounds, metavar="N", help="rounds (%(default)s)")
    made.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    made.add_argument("--quick", action="store_true", help="see whether it works: one round, small sizes")
    return made


def measure_in_turn(measures: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, list[float]]:
    """Figures by name, one a round; every other round goes backwards."""
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        names = list(measures) if number % 2 == 0 else list(reversed(list(measures)))
        for name in names:
            figures[name].append(measures[name]())
            say(f"round {number + 1} of {rounds}: {name}: {figures[name][-1]:.5g}")
    return figures


def show(
    title: str, rows: Sequence[Row], *, is_json: bool, extra: Mapping[str, object] | None = None
) -> None:
    """Print the result."""
    extra = dict(extra or {})
    if is_json:
        document = {"bench": title, "machine": machine(), "rows": [row.document() for row in rows], **extra}
        print(json.dumps(document, indent=2))
        return
    width = 2 + max((len(row.name) for row in rows), default=20)
    print(f"{title}\n{machine()}")
    print(f"{'':{width}}{'ours':>12}{'peer':>12} {'':10}{'min':>8}{'ratio':>8}{'max':>8}{'n':>4}")
    for row in rows:
        print(row.line(width))
    for name, value in extra.items():
        print(f"{name}: {value}")


def machine() -> str:
    """Where this was measured, and how busy the machine was just then."""
    names = [line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {load}, "
        f"Python {platform.python_version()}"
    )


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def _cpu_lines() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return file.readlines()
    except OSError:
        return []
