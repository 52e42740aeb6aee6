"""How long does it take to run the program of a large plan without numbers?

    python bench/tracing.py [--quick] [--json] [--pairs 3]

The whole command, start of Python and torch included: the largest network of the catalog with 126 layers on 512 ranks, a
strategy over four axes, against 30 s; and `import torch`, which is a part of it.
"""

import os
import sys
from functools import partial
from pathlib import Path

from pairs import Row, measure_in_turn, parser, show
from startup import COMMANDS, TORCH, TRIMTAB, wall_s

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
        {name: partial(wall_s, command, os.environ) for name, command in commands.items()},
        rounds=options.pairs,
    )
    limit = [LIMIT_S] * options.pairs
    rows = [
        Row(name=f"{TRACE} / {LIMIT_S:g} s", unit="s", ours=found[TRACE], peer=limit, at_most=1.0),
        Row(name=f"{TRACE} / {TORCH}", unit="s", ours=found[TRACE], peer=found[TORCH]),
    ]
    show("tracing", rows, is_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
