"""How long do verbs that need no tensors take to answer?

    python bench/startup.py [--quick] [--json] [--pairs 9]

Against an empty Python program, and against `import torch`, which none of them may do. Modules are compiled once before,
as they are in an installed package.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pairs import Row, measure_in_turn, parser, show

JOB = Path(__file__).parents[1] / "examples" / "quickstart.yaml"
TRIMTAB = (sys.executable, "-m", "trimtab")
COMMANDS = {
    "trimtab --help": (*TRIMTAB, "--help"),
    "trimtab explain": (*TRIMTAB, "explain", str(JOB)),
    "trimtab schema": (*TRIMTAB, "schema"),
    "python -c pass": (sys.executable, "-c", "pass"),
    "python -c 'import torch'": (sys.executable, "-c", "import torch"),
}
EMPTY, TORCH = "python -c pass", "python -c 'import torch'"
LIMIT_S = 0.3


def main() -> int:
    """Measure and print; returns the exit code."""
    options = parser(__doc__, rounds=9).parse_args()
    if options.quick:
        options.pairs = 1
    with tempfile.TemporaryDirectory() as bytecode:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        measures = {name: partial(wall_s, command, environment) for name, command in COMMANDS.items()}
        for compiles in measures.values():
            compiles()
        found = measure_in_turn(measures, rounds=options.pairs)
    rows = []
    for name in COMMANDS:
        if name in (EMPTY, TORCH):
            continue
        limit = [LIMIT_S] * options.pairs
        rows.append(Row(name=f"{name} / {LIMIT_S} s", unit="s", ours=found[name], peer=limit, at_most=1.0))
        rows.append(Row(name=f"{name} / {EMPTY}", unit="s", ours=found[name], peer=found[EMPTY]))
        rows.append(Row(name=f"{name} / {TORCH}", unit="s", ours=found[name], peer=found[TORCH]))
    show("start-up", rows, is_json=options.json)
    return 0


def wall_s(command: tuple[str, ...], environment: Mapping[str, str]) -> float:
    """Seconds from start to end of a command that must succeed."""
    started_s = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - started_s


if __name__ == "__main__":
    sys.exit(main())
