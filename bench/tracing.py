"""How long does it take to run the program of a large plan without numbers?

    python bench/tracing.py [--quick] [--json] [--pairs 3]

The whole command, start of Python and torch included: the largest network of the catalog, 126 layers and 16 microbatches,
on 512 ranks, a strategy over three axes, against 30 s; and `import torch`, which is a part of it. It runs on one thread and
waits for nothing, so processor time is what it takes on a machine that does nothing else.
"""

import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

from pairs import Row, measure_in_turn, parser, show
from startup import COMMANDS, TORCH, TRIMTAB

JOB = Path(__file__).parents[1] / "tests" / "golden" / "plan" / "explanation" / "llama3-405b-4d.yaml"
LIMIT_S = 30.0
TRACE = "trimtab explain --trace, llama3-405b on 512 ranks"


def main() -> int:
    """Measure and print; returns the exit code."""
    options = parser(__doc__, rounds=3).parse_args()
    if options.quick:
        options.pairs = 1
    commands = {TRACE: (*TRIMTAB, "explain", str(JOB), "--trace"), TORCH: COMMANDS[TORCH]}
    found = measure_in_turn(
        {name: partial(processor_s, command) for name, command in commands.items()},
        rounds=options.pairs,
    )
    limit = [LIMIT_S] * options.pairs
    rows = [
        Row(name=f"{TRACE} / {LIMIT_S:g} s", unit="s", ours=found[TRACE], peer=limit, at_most=1.0),
        Row(name=f"{TRACE} / {TORCH}", unit="s", ours=found[TRACE], peer=found[TORCH]),
    ]
    show("tracing", rows, is_json=options.json)
    return 0


def processor_s(command: tuple[str, ...]) -> float:
    """Seconds of the processor that a command takes, which must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
