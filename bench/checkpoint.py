"""How much longer does a training loop take for each checkpoint of 200 MB?

    python bench/checkpoint.py [--quick] [--json] [--pairs 5]

Each way saves the same state in a process of its own (bench/peers/saving.py, trimtab's in bench/saving_trimtab.py: signed as in every run, and beside that unsigned, and encrypted):
a number of steps without a save, then as many with one save at their beginning, in turn. What counts is the extra
wall time of the whole stretch, so that a save in the background is charged for what it takes from the steps.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from pairs import Row, measure_in_turn, parser, show

HERE = Path(__file__).parent
SCRIPTS = {
    **dict.fromkeys(("trimtab", "trimtab unsigned", "trimtab encrypted"), HERE / "saving_trimtab.py"),
    **dict.fromkeys(
        ("dcp.async_save thread", "dcp.async_save process", "dcp.save", "torch.save"),
        HERE / "peers" / "saving.py",
    ),
}
BAR = {"dcp.async_save thread": 0.25}
"""Ours is claimed to cost at most this part of it."""
RESOLUTION_MS = 1.0
"""Less extra time than this cannot be told from none, and counts as this."""


def main() -> int:
    """Measure and print; returns the exit code."""
    made = parser(__doc__, rounds=5)
    made.add_argument("--megabytes", type=int, default=200, help="of the state (%(default)s)")
    made.add_argument("--saves", type=int, default=5, help="of each process (%(default)s)")
    made.add_argument("--steps", type=int, default=400, help="in a stretch (%(default)s)")
    options = made.parse_args()
    if options.quick:
        options.pairs, options.megabytes, options.saves, options.steps = 1, 20, 1, 100
    details: dict[str, list[dict[str, Any]]] = {name: [] for name in SCRIPTS}
    measures = {name: partial(extra_ms, name, options, details[name]) for name in SCRIPTS}
    found = measure_in_turn(measures, rounds=options.pairs)
    rows = [
        Row(
            name=f"extra time a save / {name}",
            unit="ms",
            ours=found["trimtab"],
            peer=found[name],
            at_most=BAR.get(name),
        )
        for name in SCRIPTS
        if name != "trimtab"
    ]
    show(
        f"checkpoints of {options.megabytes} MB", rows, is_json=options.json, extra={
            f"{key}, ms, median, {name}": round(statistics.median(detail[key] for detail in found_details), 2)
            for name, found_details in details.items()
            for key in ("call_ms", "durable_ms", "step_ms")
        },
    )  # fmt: skip
    return 0


def extra_ms(name: str, options: argparse.Namespace, details: list[dict[str, Any]]) -> float:
    """Milliseconds that a save adds, median over the saves of one process."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        command = [
            sys.executable, str(SCRIPTS[name]), "--way", name, "--folder", folder,
            "--megabytes", str(options.megabytes), "--saves", str(options.saves), "--steps", str(options.steps),
        ]  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{name} gave exit code {ended.returncode}: {ended.stderr[-3000:]}")
    details.append(json.loads(ended.stdout))
    return max(float(details[-1]["extra_ms"]), RESOLUTION_MS)


if __name__ == "__main__":
    sys.exit(main())
