"""What part of a step do the timers of the ledger take?

    python bench/timers.py [--quick] [--json] [--pairs 5]

Nanoseconds of one switch and of one lap with its journal event, measured on a real clock file and journal, times
their number in a step, counted in a real run (bench/probes/sitecustomize.py), over the time of that step.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import runs
from pairs import Row, measure_in_turn, parser, show
from runs import QUICKSTART, TINY
from trimtab.runtime.recorder import Recorder
from trimtab.terms import Clock

PROBES = Path(__file__).with_name("probes")
MOST = 0.005
"""Of a step's time."""
NUM_CALLS = 20_000
DROPPED = 3


def main() -> int:
    """Measure and print; returns the exit code."""
    made = parser(__doc__, rounds=5)
    made.add_argument("--steps", type=int, default=10, help="of the run (%(default)s)")
    options = made.parse_args()
    if options.quick:
        options.pairs, options.steps = 1, 6
    size = TINY if options.quick else QUICKSTART
    environment = {"PYTHONPATH": os.pathsep.join([str(PROBES), os.environ.get("PYTHONPATH", "")])}
    with runs.workplace() as place, tempfile.TemporaryDirectory() as folder:
        run = place.run(size, steps=options.steps, devices=2, shares="4", environment=environment)
        steps = runs.events(run, "rank-0-0", "step")[DROPPED:]
        recorder = Recorder(Path(folder), rank=0, incarnation=0)
        ns = measure_in_turn(
            {
                "switch": partial(ns_per_call, partial(recorder.switch, Clock.COMPUTE)),
                "event": partial(ns_per_call, partial(write_step_event, recorder, steps[-1])),
            },
            rounds=options.pairs,
        )
    num_switches = statistics.median(step["switches"] for step in steps)
    step_ns = statistics.median(step["end_ns"] - step["start_ns"] for step in steps)
    taken_ns = [
        switch * num_switches + event for switch, event in zip(ns["switch"], ns["event"], strict=True)
    ]
    rows = [
        Row(
            name=f"{size.name}: switches and event of a step / step",
            unit="ns",
            ours=taken_ns,
            peer=[step_ns] * options.pairs,
            at_most=MOST,
        )
    ]  # fmt: skip
    extra = {
        "switches a step": num_switches,
        "ns a switch": round(statistics.median(ns["switch"])),
        "ns an event": round(statistics.median(ns["event"])),
    }
    show("the ledger's timers", rows, is_json=options.json, extra=extra)
    return 0


def ns_per_call(call: Callable[[], object]) -> float:
    """Mean over many calls."""
    started_ns = time.perf_counter_ns()
    for _ in range(NUM_CALLS):
        call()
    return (time.perf_counter_ns() - started_ns) / NUM_CALLS


def write_step_event(recorder: Recorder, event: runs.Event) -> None:
    """Write what a rank writes at the end of a step."""
    fields = {name: value for name, value in event.items() if name not in ("event", "t_ns", "switches")}
    recorder.event("step", **fields)


if __name__ == "__main__":
    sys.exit(main())
