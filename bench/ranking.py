"""Does the estimate of a step's time put layouts in the order in which they are fast?

    python bench/ranking.py [--quick] [--json] [--pairs 3]

Layouts of two ranks on small networks, each run for real by `explain --analyze`'s measurement, against the estimate for
this machine. What the estimate needs to know of the machine is measured in the same run, with both ranks at work: the
rate of a large matrix product, the bandwidth of the memory, latency and bandwidth of an all-reduce. Printed is
Spearman's coefficient of the order: 1 if the order is the same. A round measures all layouts, every other round
backwards; the time of a layout in a round is the median of its steps, and over the rounds the least, for whatever else
the machine does only adds time. Printed too is the coefficient of each round with the next: where the measured order
does not repeat itself, no estimate can meet it. The latency is that of an all-reduce
between computing, for on shared cores most of it is waiting for the other rank to come.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from pairs import machine, measure_in_turn, parser, say, show
from trimtab.catalog import THIS_MACHINE, Cluster, Machine, cluster, network
from trimtab.cost.communication import LAUNCH_S, LINK_SHARE
from trimtab.cost.estimates import estimate
from trimtab.cost.stage_times import ACHIEVABLE_SHARE
from trimtab.plan.compiling import compile_program
from trimtab.plan.physical import Plan
from trimtab.plan.training import Training
from trimtab.runtime.lowering import Crew, Question
from trimtab.runtime.lowering.measurement import measure
from trimtab.runtime.machine_probe import probe_rank
from trimtab.runtime.optimizers import AdamW
from trimtab.spec import parse_strategy, resolve_mesh

BAR = 0.8
"""Of Spearman's coefficient."""
RANKS = 2
STEPS = 3
"""Timed in each round."""

NARROW: Mapping[str, Any] = {"layers": 4, "embed": 256, "heads": 4, "kv_heads": 4, "mlp": 1024, "vocab": 256}
WIDE: Mapping[str, Any] = {"layers": 2, "embed": 512, "heads": 8, "kv_heads": 8, "mlp": 2048, "vocab": 2048}

TENSORS = "MESH tp 2\nSPLIT heads, mlp, vocab OVER tp"
SEQUENCES = f"{TENSORS}\nSPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp"
STAGES = "MESH pp 2\nSPLIT layers OVER pp USING"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What is run.

    Args:
        name: In a few words.
        text: Its strategy.
        fields: Of the network.
        batch, microbatch: Samples.
        sequence: Tokens of one.
    """

    name: str
    text: str
    fields: Mapping[str, Any]
    batch: int = 16
    microbatch: int = 2
    sequence: int = 128


LAYOUTS = (
    Layout(name="dp", text="MESH dp 2", fields=NARROW),
    Layout(name="zero 1", text="MESH dp 2\nSTORE states OVER dp", fields=NARROW),
    Layout(name="zero 2", text="MESH dp 2\nSTORE grads, states OVER dp", fields=NARROW),
    Layout(name="zero 3", text="MESH dp 2\nSTORE params, grads, states OVER dp", fields=NARROW),
    Layout(name="dp, recomputed", text="MESH dp 2\nRECOMPUTE activations", fields=NARROW),
    Layout(name="dp, microbatch 8", text="MESH dp 2", fields=NARROW, microbatch=8),
    Layout(name="dp, batch 32", text="MESH dp 2", fields=NARROW, batch=32),
    Layout(name="dp, sequence 256", text="MESH dp 2", fields=NARROW, sequence=256),
    Layout(name="tp", text=TENSORS, fields=NARROW),
    Layout(name="tp and sequences", text=SEQUENCES, fields=NARROW),
    Layout(name="ulysses", text="MESH cp 2\nSPLIT sequence OVER cp USING ulysses", fields=NARROW),
    Layout(name="1f1b, 8 microbatches", text=f"{STAGES} 1f1b MICROBATCHES 8", fields=NARROW),
    Layout(name="gpipe, 2 microbatches", text=f"{STAGES} gpipe MICROBATCHES 2", fields=NARROW, microbatch=8),
    Layout(
        name="interleaved, 8 microbatches",
        text=f"{STAGES} interleaved_1f1b(2) MICROBATCHES 8",
        fields=NARROW,
    ),
    Layout(name="wide: dp", text="MESH dp 2", fields=WIDE),
    Layout(name="wide: zero 3", text="MESH dp 2\nSTORE params, grads, states OVER dp", fields=WIDE),
    Layout(name="wide: tp", text=TENSORS, fields=WIDE),
    Layout(name="wide: dp, batch 8", text="MESH dp 2", fields=WIDE, batch=8),
    Layout(
        name="wide: 1f1b, 4 microbatches", text=f"{STAGES} 1f1b MICROBATCHES 4", fields=WIDE, microbatch=4
    ),
)


def main() -> int:
    """Measure and print; returns the exit code."""
    options = parser(__doc__, rounds=3).parse_args()
    layouts = LAYOUTS[:4] if options.quick else LAYOUTS
    with Crew(RANKS) as crew:
        figures = calibration(crew)
        here = calibrated(figures)
        plans = {layout.name: plan_of(layout, here) for layout in layouts}
        say(f"machine: {machine()}")
        measures = {name: partial(step_s, plan, crew) for name, plan in plans.items()}
        found = measure_in_turn(measures, rounds=1 if options.quick else options.pairs)
    measured = {name: min(values) for name, values in found.items()}
    predicted = {name: predicted_s(plan, here) for name, plan in plans.items()}
    rank = spearman([predicted[name] for name in plans], [measured[name] for name in plans])
    extra: dict[str, object] = {**figures, "layouts": len(plans)}
    extra |= {name: f"predicted {predicted[name]:.4f} s, measured {measured[name]:.4f} s" for name in plans}
    by_round = list(zip(*(found[name] for name in plans), strict=True))
    extra["each round with the next"] = (
        ", ".join(f"{spearman(*pair):.3f}" for pair in pairwise(by_round)) or "-"
    )
    extra["Spearman"] = f"{rank:.3f}, >= {BAR}: {'reached' if rank >= BAR else 'MISSED'}"
    show("ranking: estimated against measured time of a step", [], is_json=options.json, extra=extra)
    return 0 if options.quick or rank >= BAR else 1


def plan_of(layout: Layout, here: Cluster) -> Plan:
    """The plan of a layout on this machine."""
    program = parse_strategy(layout.text, source=layout.name)
    training = Training(
        network=network("gpt-3m", context=layout.sequence, dropout=0.0, **layout.fields),
        batch=layout.batch,
        microbatch=layout.microbatch,
        sequence=layout.sequence,
        shares=None,
        compute="fp32",
        num_states=2,
    )
    return compile_program(program, training, mesh=resolve_mesh(program, RANKS), cluster=here)


def step_s(plan: Plan, crew: Crew) -> float:
    """Median time of a step, on the slower rank."""
    trial = measure(Question(plan=plan, optimizer=AdamW(lr=1e-3), clip=1.0, seed=1, steps=STEPS), crew)
    walls = [max(rank.steps[step].wall_ns for rank in trial.ranks) for step in range(STEPS)]
    return statistics.median(walls) * 1e-9


def predicted_s(plan: Plan, here: Cluster) -> float:
    """The estimate."""
    found = estimate(plan, here, is_overlapped=False).step_s
    assert found is not None, "rates are known"
    return found.expected


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of the two orders; no two figures are equal."""
    orders = [np.argsort(np.argsort(np.asarray(values))) for values in (first, second)]
    return float(np.corrcoef(orders[0], orders[1])[0, 1])


def calibration(crew: Crew) -> dict[str, float]:
    """What both ranks measure at the same time: the slower one counts."""
    found = crew.run(probe_rank, "fp32")
    small, large = min(found[0].all_reduce_s), max(found[0].all_reduce_s)
    # Two ranks: each sends as many bytes as the vector has.
    sending_s = max(rank.all_reduce_s[large] - rank.all_reduce_s[small] for rank in found)
    return {
        "flops_per_s": min(rank.flops_per_s for rank in found),
        "memory_bytes_per_s": min(rank.memory_bytes_per_s for rank in found),
        "latency_s": max(rank.start_s for rank in found),
        "link_bytes_per_s": large / sending_s,
    }


def calibrated(figures: Mapping[str, float]) -> Cluster:
    """This machine with what was measured, in the terms of the cost model."""
    found = cluster(
        THIS_MACHINE,
        machine=Machine(
            num_devices=RANKS,
            cores=RANKS,
            memory_bytes=2**34,
            # The model takes a part of a peak for the best product; here that was measured.
            fp32_flops_per_s=figures["flops_per_s"] / ACHIEVABLE_SHARE,
        ),
    )
    (node,), (link,) = found.nodes, found.links
    accelerator = replace(node.accelerator, memory_bytes_per_s=figures["memory_bytes_per_s"])
    # An all-reduce of two ranks is launched once and makes two hops.
    latency_s = max(figures["latency_s"] - LAUNCH_S, 0.0) / 2
    measured = replace(
        link,
        latency_s=latency_s,
        bytes_per_s=figures["link_bytes_per_s"] / LINK_SHARE,
        source="measured here",
    )
    return replace(found, nodes=(replace(node, accelerator=accelerator),), links=(measured,))


if __name__ == "__main__":
    raise SystemExit(main())
