"""How far are predictions from real steps on this machine, after a probe of it?

    python bench/probed.py [--quick] [--json] [--pairs 3]

Ranks are as many as cores, at most two. A probe measures the machine and five small networks; then twenty other layouts
are predicted and run for real by `explain --analyze`'s measurement. A round measures all, every other round backwards; the
time of a layout in a round is the median of its steps, and over the rounds the least, for whatever else the machine does only
adds time. The choice: among layouts of one network and batch, the one that is predicted to be fastest against the one that is.
"""

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pairs import Row, machine, measure_in_turn, parser, say, show
from trimtab.app.machines import find_machine
from trimtab.app.probing import columns, measured_s, probe_machine
from trimtab.catalog import network, read_probe
from trimtab.cost.calibration import MeasuredRun, calibrated_on, published_fits
from trimtab.cost.search import Layout, Question, fabric_of_probe
from trimtab.plan.pipelines import StageSchedule
from trimtab.runtime.lowering import Crew

RANKS = 2
ERROR_BAR, CHOICE_BAR = 15.0, 5.0

NARROW: Mapping[str, Any] = {"layers": 4, "embed": 256, "heads": 4, "kv_heads": 4, "mlp": 1024, "vocab": 256}
DEEP: Mapping[str, Any] = {"layers": 6, "embed": 384, "heads": 6, "kv_heads": 6, "mlp": 1536, "vocab": 1024}
WIDE: Mapping[str, Any] = {"layers": 2, "embed": 512, "heads": 8, "kv_heads": 8, "mlp": 2048, "vocab": 2048}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layout of one network."""

    name: str
    network: Mapping[str, Any]
    degrees: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 16
    sequence: int = 128


PIPE = {"pipeline": 2}
CASES = (
    Case(name="deep: replicas", network=DEEP, degrees={"microbatch": 2}),
    Case(name="deep: replicas, microbatch 4", network=DEEP, degrees={"microbatch": 4}),
    Case(name="deep: states stored", network=DEEP, degrees={"microbatch": 2, "store": 1}),
    Case(name="deep: gradients stored", network=DEEP, degrees={"microbatch": 4, "store": 2}),
    Case(name="deep: all stored", network=DEEP, degrees={"microbatch": 4, "store": 3}),
    Case(name="deep: computed again", network=DEEP, degrees={"microbatch": 4, "recompute_quarters": 4}),
    Case(name="deep: tensors cut", network=DEEP, degrees={"microbatch": 4, "tensor": 2}),
    Case(name="deep: 1f1b", network=DEEP, degrees={"microbatch": 2, **PIPE}),
    Case(
        name="deep: gpipe", network=DEEP, degrees={"microbatch": 4, **PIPE, "schedule": StageSchedule.GPIPE}
    ),
    Case(
        name="deep: interleaved",
        network=DEEP,
        degrees={"microbatch": 2, **PIPE, "schedule": StageSchedule.INTERLEAVED_1F1B, "pieces": 3},
    ),
    Case(name="narrow: microbatch 4", network=NARROW, degrees={"microbatch": 4}),
    Case(name="narrow: states stored", network=NARROW, degrees={"microbatch": 2, "store": 1}),
    Case(name="narrow: batch 32", network=NARROW, degrees={"microbatch": 2}, batch=32),
    Case(name="narrow: sequence 256", network=NARROW, degrees={"microbatch": 2}, sequence=256),
    Case(name="narrow: tensors cut", network=NARROW, degrees={"microbatch": 4, "tensor": 2}),
    Case(name="narrow: computed again", network=NARROW, degrees={"microbatch": 2, "recompute_quarters": 4}),
    Case(name="wide: microbatch 4", network=WIDE, degrees={"microbatch": 4}),
    Case(name="wide: states stored", network=WIDE, degrees={"microbatch": 4, "store": 1}),
    Case(name="wide: all stored", network=WIDE, degrees={"microbatch": 8, "store": 3}),
    Case(name="wide: tensors cut", network=WIDE, degrees={"microbatch": 4, "tensor": 2}),
    Case(name="wide: 1f1b", network=WIDE, degrees={"microbatch": 4, **PIPE}),
)


def main() -> int:
    """Measure and print; returns the exit code."""
    asked = parser(__doc__, rounds=3).parse_args()
    cases = CASES[:4] if asked.quick else CASES
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.json"
        probe_machine(devices=RANKS, places=[path], is_json=False) if not asked.json else _quietly(path)
        probe = read_probe(path.read_text(encoding="utf-8"), source=str(path))
    fabric = fabric_of_probe(probe)
    questions = {
        case.name: Question(
            network=network("gpt-3m", context=case.sequence, dropout=0.0, **case.network),
            sequence=case.sequence,
            batch=case.batch,
            fabric=fabric,
            devices=(RANKS,),
            compute="fp32",
            shares=None,
        )
        for case in cases
    }
    layouts = {case.name: Layout(devices=RANKS, **case.degrees) for case in cases}
    calibrated = calibrated_on(published_fits().time_belief(), probe)
    runs = [_run(name, questions[name], layouts[name]) for name in layouts]
    expected = dict(zip(layouts, calibrated.predict(runs).expected.tolist(), strict=True))
    memory_bytes = find_machine().memory_bytes
    say(f"machine: {machine()}")
    with Crew(RANKS) as crew:
        found = measure_in_turn(
            {
                name: partial(measured_s, questions[name], layouts[name], crew, memory_bytes=memory_bytes)
                for name in layouts
            },
            rounds=1 if asked.quick else asked.pairs,
        )
    measured = {name: min(values) for name, values in found.items()}
    errors = {name: 100 * (expected[name] / measured[name] - 1) for name in measured}
    error = statistics.fmean(abs(value) for value in errors.values())
    rows = [
        Row(
            name=f"{name}: predicted / measured",
            unit="s a step",
            ours=[expected[name]],
            peer=[measured[name]],
        )
        for name in measured
    ]
    extra: dict[str, object] = {"layouts": len(measured)}
    extra["mean absolute error"] = f"{error:.1f} %, <= {ERROR_BAR:g}: {_said(error <= ERROR_BAR)}"
    for kind in ("deep", "narrow", "wide"):
        own = [case.name for case in cases if case.name.startswith(kind) and _is_plain(case)]
        if len(own) > 1:
            chosen, best = (
                min(own, key=lambda name: expected[name]),
                min(own, key=lambda name: measured[name]),
            )
            regret = 100 * (measured[chosen] / measured[best] - 1)
            extra[f"{kind}: chosen of {len(own)}"] = (
                f"{chosen}, {regret:.1f} % above {best}, <= {CHOICE_BAR:g}: {_said(regret <= CHOICE_BAR)}"
            )
    show("real steps against predictions after a probe", rows, is_json=asked.json, extra=extra)
    return 0 if asked.quick or error <= ERROR_BAR else 1


def _is_plain(case: Case) -> bool:
    """Of one question: the same batch and sequence."""
    return case.batch == 16 and case.sequence == 128


def _said(is_reached: bool) -> str:
    return "reached" if is_reached else "MISSED"


def _quietly(path: Path) -> None:
    """A probe that prints nothing on standard output, where the one document belongs."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()):
        probe_machine(devices=RANKS, places=[path], is_json=False)


def _run(name: str, question: Question, layout: Layout) -> MeasuredRun:
    return MeasuredRun(
        row_id=name,
        source="here",
        labels=("trimtab", "fp32", "probed"),
        problem="",
        columns=columns(question, layout),
        step_s=None,
        peak_bytes=None,
        capacity_bytes=0.0,
        is_out_of_memory=False,
    )


if __name__ == "__main__":
    raise SystemExit(main())
