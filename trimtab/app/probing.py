"""The verb ``probe``: the map of this machine, and a few real steps on it, for the planner."""

import datetime as dt
import json
import platform
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.app.machines import find_machine
from trimtab.app.output import print_document, say, write_output
from trimtab.catalog import THIS_MACHINE, CollectiveTime, Machine, Pair, Probe, ProbedRun, cluster, network
from trimtab.cost.search import Fabric, Layout, Question, fabric_of_probe, plan_of, priced_cases
from trimtab.plan.pipelines import StageSchedule
from trimtab.terms import ExitCode, InputError, format_bytes, format_seconds

if TYPE_CHECKING:
    from trimtab.runtime.lowering import Crew
    from trimtab.runtime.machine_probe import RankProbe

MOST_RANKS = 16
"""That a probe starts on one machine."""

STEPS = 3
"""Timed, of each of the small networks."""

_NARROW: dict[str, Any] = {"layers": 4, "embed": 256, "heads": 4, "kv_heads": 4, "mlp": 1024, "vocab": 256}
_WIDE: dict[str, Any] = {"layers": 2, "embed": 512, "heads": 8, "kv_heads": 8, "mlp": 2048, "vocab": 2048}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """A small network and a layout to run it in.

    Args:
        name: For people.
        network: Fields of the network.
        degrees: Fields of the layout; ``all`` stands for every rank.
    """

    name: str
    network: dict[str, Any]
    degrees: dict[str, Any]


ALL = "all"

REFERENCES = (
    Reference(name="replicas", network=_NARROW, degrees={"microbatch": 2}),
    Reference(name="one microbatch", network=_NARROW, degrees={"microbatch": 8}),
    Reference(name="states in pieces", network=_NARROW, degrees={"microbatch": 2, "store": 1}),
    Reference(name="stored in pieces", network=_NARROW, degrees={"microbatch": 2, "store": 3}),
    Reference(
        name="tensors and sequences cut",
        network=_NARROW,
        degrees={"microbatch": 2, "tensor": ALL, "sequence_parallel": True},
    ),
    Reference(name="stages", network=_NARROW, degrees={"microbatch": 2, "pipeline": ALL}),
    Reference(name="replicas of a wide one", network=_WIDE, degrees={"microbatch": 2}),
)
"""One for each way in which ranks depend on each other."""

_BATCH, _SEQUENCE = 16, 128


def probe_machine(*, devices: int | None, places: Sequence[Path], is_json: bool) -> int:
    """Measure, and print or write what was found.

    Args:
        devices: Ranks; as many as there are cores, at most 8, if None.
        places: Files to write the document to.
        is_json: Whether to print it.
    """
    machine = find_machine()
    ranks = devices or min(machine.cores, 8)
    if not 1 <= ranks <= MOST_RANKS:
        raise InputError(f"probe --devices {ranks}: it starts 1 to {MOST_RANKS} processes on this machine")
    # Only who asks for measurements loads torch.
    import torch

    from trimtab.runtime.lowering import Crew
    from trimtab.runtime.machine_probe import probe_rank

    say(f"probe: {ranks} ranks on this machine")
    with Crew(ranks) as crew:
        found = crew.run(probe_rank, "fp32")
        probe = _probe(found, ranks, machine.memory_bytes, {"torch": torch.__version__})
        runs = []
        for reference, question, layout in _references(fabric_of_probe(probe), ranks):
            step_s = measured_s(question, layout, crew, memory_bytes=machine.memory_bytes)
            say(f"probe: {reference.name}: {format_seconds(step_s)} a step")
            runs.append(ProbedRun(name=reference.name, columns=columns(question, layout), step_s=step_s))
    probe = replace(probe, runs=tuple(runs))
    text = json.dumps(probe.document(), indent=2) + "\n"
    for path in places:
        write_output(path, text, what="the probe")
    if is_json:
        print_document(probe.document())
    else:
        for line in probe_lines(probe):
            print(line)
    return ExitCode.DONE


def probe_lines(probe: Probe) -> Iterator[str]:
    """As people read it."""
    yield f"{probe.num_devices} ranks, {', '.join(f'{name} {version}' for name, version in probe.versions.items())}"
    yield (
        f"  products    {min(probe.flops_per_s) / 1e9:,.1f} to {max(probe.flops_per_s) / 1e9:,.1f} GFLOP/s a rank in "
        f"{probe.compute}, all at once"
    )
    for rank in probe.slow_ranks:
        yield f"  SLOW        rank {rank}: {probe.flops_per_s[rank] / 1e9:,.1f} GFLOP/s, a fifth below the median"
    yield (
        f"  attention   {min(probe.attention_flops_per_s) / 1e9:,.1f} GFLOP/s a rank, causal, forwards; "
        f"a launch {format_seconds(probe.kernel_s)}"
    )
    yield f"  memory      {format_bytes(min(probe.memory_bytes_per_s))} a second and rank, read and written"
    if probe.num_devices > 1:
        yield f"  collective  {format_seconds(probe.start_s)} before its first byte, between computing"
        for (name, ranks), times in groupby(
            sorted(probe.collectives, key=lambda time: (time.name, time.ranks, time.size_bytes)),
            key=lambda time: (time.name, time.ranks),
        ):
            told = ", ".join(
                f"{format_bytes(time.size_bytes)} {format_seconds(time.seconds)}" for time in times
            )
            yield f"    {name} of {ranks}: {told}"
        for pair in probe.pairs:
            yield (
                f"  ranks {pair.first}, {pair.second}  {format_seconds(pair.latency_s)} one way, "
                f"{format_bytes(pair.bytes_per_s)} a second"
            )
    for run in probe.runs:
        yield f"  {run.name:27} {format_seconds(run.step_s)} a step"


def columns(question: Question, layout: Layout) -> dict[str, float]:
    """A layout as closed forms see it."""
    case = priced_cases(question, layout)
    return {field.name: float(np.ravel(getattr(case, field.name))[0]) for field in fields(case)}


def measured_s(question: Question, layout: Layout, crew: "Crew", *, memory_bytes: int) -> float:
    """Median seconds of a real step, on the slowest rank."""
    from trimtab.runtime.lowering import Question as Asked
    from trimtab.runtime.lowering.measurement import measure
    from trimtab.runtime.optimizers import AdamW

    here = cluster(
        THIS_MACHINE,
        machine=Machine(num_devices=layout.devices, cores=layout.devices, memory_bytes=memory_bytes),
    )
    plan = plan_of(question, layout, here, shares=question.shares)
    trial = measure(Asked(plan=plan, optimizer=AdamW(lr=1e-3), clip=1.0, seed=1, steps=STEPS), crew)
    walls = [max(rank.steps[step].wall_ns for rank in trial.ranks) for step in range(STEPS)]
    return statistics.median(walls) * 1e-9


def _references(fabric: Fabric, ranks: int) -> Iterator[tuple[Reference, Question, Layout]]:
    for reference in REFERENCES:
        if ranks == 1 and (set(reference.degrees) - {"microbatch"}):
            continue
        degrees: dict[str, Any] = {
            name: ranks if value == ALL else value for name, value in reference.degrees.items()
        }
        layout = Layout(devices=ranks, schedule=StageSchedule.ONE_F_ONE_B, **degrees)
        if not _divides(reference, layout):
            continue
        question = Question(
            network=network("gpt-3m", context=_SEQUENCE, dropout=0.0, **reference.network),
            sequence=_SEQUENCE,
            batch=_BATCH * max(1, ranks // 2),
            fabric=fabric,
            devices=(ranks,),
            compute="fp32",
            shares=None,
        )
        yield reference, question, layout


def _divides(reference: Reference, layout: Layout) -> bool:
    heads, layers = int(reference.network["heads"]), int(reference.network["layers"])
    return heads % layout.tensor == 0 and layers % layout.pipeline == 0


def _probe(found: "Sequence[RankProbe]", ranks: int, memory_bytes: int, versions: dict[str, str]) -> Probe:
    times = tuple(
        CollectiveTime(
            name=name, ranks=count, size_bytes=size, seconds=max(rank.collectives[key] for rank in found)
        )
        for key in found[0].collectives
        for name, count, size in [key]
    )
    table = {
        time.size_bytes: time.seconds for time in times if (time.name, time.ranks) == ("all_reduce", ranks)
    }
    largest = max(table, default=0)
    # An all-reduce of p ranks sends 2 (p - 1) / p times its vector from each of them.
    sent = 2 * largest * (ranks - 1) / ranks
    link = sent / max(table[largest] - table[min(table)], 1e-9) if table else 0.0
    return Probe(
        taken_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        versions={"Python": platform.python_version(), **versions},
        compute="fp32",
        num_devices=ranks,
        memory_bytes=memory_bytes // ranks,
        flops_per_s=tuple(rank.flops_per_s for rank in found),
        memory_bytes_per_s=tuple(rank.memory_bytes_per_s for rank in found),
        attention_flops_per_s=tuple(rank.attention_flops_per_s for rank in found),
        kernel_s=max(rank.kernel_s for rank in found),
        start_s=max(rank.start_s for rank in found),
        link_bytes_per_s=link,
        collectives=times,
        pairs=tuple(
            Pair(first=first, second=second, latency_s=latency_s, bytes_per_s=rate)
            for first, rank in enumerate(found)
            for second, (latency_s, rate) in sorted(rank.pairs.items())
        ),
        runs=(),
    )
