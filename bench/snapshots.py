"""What do copies in a buddy's memory, and durable saves at the adaptive cadence, cost a run?

    python bench/snapshots.py [--quick] [--json] [--pairs 5]

Two ranks store the quickstart network in pieces (ZeRO-3). Measured is the whole loop: wall time from the first
committed step to the last, by the rank's own records; without copies and saves, with a copy every so many steps, and
with saves as the cadence asks for them. Copies at each step show the price where nothing is at risk; `auto` copies
twice a minute.
"""

import sys
from functools import partial

import runs
from pairs import Row, measure_in_turn, parser, show
from runs import Workplace

JOB = """
run: bench
model: {{preset: gpt-3m}}
data: {{text: text, tokenizer: bytes, sequence: 128}}
train: {{steps: {steps}, batch: 32, optimizer: {{adamw: {{lr: 1e-3}}}}}}
orchestration: {{devices: 2}}
parallelism: |
  MESH dp 2
  STORE params, grads, states OVER dp
fault_tolerance: {{shares: 4, snapshots: {snapshots}, checkpoint: {{every: {saves}}}}}
"""
OFF = '"off"'


def main() -> int:
    """Measure and print; returns the exit code."""
    made = parser(__doc__, rounds=5)
    made.add_argument("--steps", type=int, default=60, help="of each run (%(default)s)")
    options = made.parse_args()
    if options.quick:
        options.steps, options.pairs = 12, 1
    with runs.workplace() as place:
        loop = partial(loop_s, place, options.steps)
        found = measure_in_turn(
            {
                "none": lambda: loop(snapshots=OFF, saves=OFF),
                "each": lambda: loop(snapshots="1", saves=OFF),
                "tenth": lambda: loop(snapshots="10", saves=OFF),
                "auto": lambda: loop(snapshots="auto", saves=OFF),
                "saves": lambda: loop(snapshots=OFF, saves="adaptive"),
            },
            rounds=options.pairs,
        )
    row = partial(Row, unit="s of the loop", peer=found["none"])
    rows = [
        row(name="a copy every step / none", ours=found["each"]),
        row(name="a copy every 10 steps / none", ours=found["tenth"]),
        row(name="auto, at most 60 s at risk / none", ours=found["auto"], at_most=1.03),
        row(name="durable saves, adaptive / none", ours=found["saves"], at_most=1.01),
    ]
    show("wall time of the whole loop", rows, is_json=options.json)
    return 0


def loop_s(place: Workplace, steps: int, *, snapshots: str, saves: str) -> float:
    """Seconds from the first committed step of a run to its last."""
    job = place.folder / "job.yaml"
    job.write_text(JOB.format(steps=steps, snapshots=snapshots, saves=saves), encoding="utf-8")
    ended_ns = [event["end_ns"] for event in runs.rank_events(place.run_job(job.name), "step")]
    return float((ended_ns[-1] - ended_ns[0]) / 1e9)


if __name__ == "__main__":
    sys.exit(main())
