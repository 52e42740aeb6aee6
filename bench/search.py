"""How many layouts are priced in a second, time and memory of each, and how long is a whole search?

    python bench/search.py [--quick] [--json] [--pairs 5]

A search enumerates every layout that the strategy language can say and prices each by closed forms. The peer is the same
pricing, one layout at a time. Memory is that of this process at its end.
"""

import resource
import time
from collections.abc import Callable

import numpy as np

from pairs import Row, measure_in_turn, parser, show
from trimtab.catalog import cluster, network
from trimtab.cost.calibration import published_fits
from trimtab.cost.search import Limits, Question, fabric_of, find, price_of_layout
from trimtab.cost.search.space import layout_at, layouts

LIMITS = Limits(usd_per_device_hour=2.0)
SAMPLE = 300
"""Layouts that the peer prices."""


def main() -> None:
    """Measure and print."""
    asked = parser(__doc__, rounds=5).parse_args()
    fits = published_fits()
    time_belief, memory_belief = fits.time_belief(), fits.memory_belief()
    values = time_belief.values(time_belief.means), memory_belief.values(memory_belief.means)
    questions = {
        "llama2-7b on 8 A100": Question(
            network=network("llama2-7b"),
            sequence=4096,
            batch=64,
            fabric=fabric_of(cluster("64xA100"), "bf16"),
            devices=(8,),
            compute="bf16",
            shares=None,
        )
    }
    if not asked.quick:
        questions |= {
            "gpt3-175b on 512 H100": _large("gpt3-175b", 512, batch=1536, sequence=2048),
            "llama3-405b on 16384 H100": _large("llama3-405b", 16384, batch=2048, sequence=8192),
        }
    evaluated: dict[str, int] = {}

    def whole(name: str) -> Callable[[], float]:
        def measure() -> float:
            began = time.perf_counter()
            evaluated[name] = find(
                questions[name], LIMITS, time=values[0], memory=values[1], keep=64
            ).evaluated
            return time.perf_counter() - began

        return measure

    def alone(name: str) -> Callable[[], float]:
        chunk = next(layouts(questions[name]))
        chosen = np.random.default_rng(0).permutation(len(chunk["devices"]))[:SAMPLE]
        sample = [layout_at(chunk, int(index)) for index in chosen]

        def measure() -> float:
            began = time.perf_counter()
            for layout in sample:
                price_of_layout(questions[name], LIMITS, layout, time=values[0], memory=values[1])
            return (time.perf_counter() - began) / len(sample)

        return measure

    figures = measure_in_turn(
        {
            f"{name}: {kind}": made(name)
            for name in questions
            for kind, made in (("all", whole), ("one", alone))
        },
        rounds=1 if asked.quick else asked.pairs,
    )
    rows = []
    for name in questions:
        seconds = figures[f"{name}: all"]
        rates = [evaluated[name] / second for second in seconds]
        rows.append(
            Row(
                name=f"{name}: layouts a second / one at a time",
                unit="/s",
                ours=rates,
                peer=[1 / second for second in figures[f"{name}: one"]],
            )
        )
    extra = {
        f"{name}: layouts, seconds of the search": f"{evaluated[name]:,}, {sorted(figures[f'{name}: all'])[len(figures[f'{name}: all']) // 2]:.2f}"
        for name in questions
    }
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    show("searching layouts", rows, is_json=asked.json, extra={**extra, "peak memory, MiB": round(peak_mb)})


def _large(name: str, devices: int, *, batch: int, sequence: int) -> Question:
    """On so many H100."""
    return Question(
        network=network(name),
        sequence=sequence,
        batch=batch,
        fabric=fabric_of(cluster(f"{devices}xH100"), "bf16"),
        devices=(devices,),
        compute="bf16",
        shares=None,
    )


if __name__ == "__main__":
    main()
