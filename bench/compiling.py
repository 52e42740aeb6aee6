"""How long does it take to compile a strategy, and what of it?

    python bench/compiling.py [--quick] [--json] [--pairs 9]

The largest network of the catalog on 512 devices with a 4D strategy, against the 0.5 s that `explain` may take; its
parts (text to tree, rows, the whole plan); and a pipeline of 16 ranks and 256 microbatches, simulated.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

from pairs import Row, measure_in_turn, parser, show
from trimtab.catalog import cluster, network
from trimtab.plan.compiling import compile_program
from trimtab.plan.pipelines import StageSchedule, StageTimes, actions_of, simulate
from trimtab.plan.tables import rows_of
from trimtab.plan.training import Training
from trimtab.spec import parse_strategy, resolve_mesh

LIMIT_S = 0.5
STRATEGY = """\
MESH pp 8, dp 8, tp 8 WITHIN node
SPLIT heads, mlp, vocab OVER tp
SPLIT sequence OF activations WHERE kind IN ('norm', 'residual') OVER tp
SPLIT layers OVER pp USING interleaved_1f1b(2) MICROBATCHES 16 BALANCE BY time
STORE params, grads, states OVER dp
RECOMPUTE activations WHERE layer % 2 = 0
"""
LLAMA = network("llama3-405b")
CLUSTER = cluster("512xH100")
TRAINING = Training(
    network=LLAMA, batch=512, microbatch=1, sequence=8192, shares=8, compute="bf16", num_states=2
)


def main() -> int:
    """Measure and print; returns the exit code."""
    options = parser(__doc__, rounds=9).parse_args()
    if options.quick:
        options.pairs = 1
    measures = {name: partial(seconds, call) for name, call in CALLS.items()}
    found = measure_in_turn(measures, rounds=options.pairs)
    limit = [LIMIT_S] * options.pairs
    rows = [
        Row(name=f"{name} / {LIMIT_S} s", unit="s", ours=found[name], peer=limit, at_most=1.0)
        for name in CALLS
    ]
    show("compiling llama3-405b for 512 devices", rows, is_json=options.json)
    return 0


def compile_whole() -> None:
    """From text to a verified plan."""
    program = parse_strategy(STRATEGY, source="bench.trim")
    compile_program(program, TRAINING, mesh=resolve_mesh(program, 512), cluster=CLUSTER)


def simulate_large() -> None:
    """One step of a long pipeline."""
    actions = actions_of(StageSchedule.ONE_F_ONE_B, ranks=16, stages_per_rank=1, microbatches=256)
    simulate(actions, times=StageTimes.even(16, hop_s=0.1))


CALLS: dict[str, Callable[[], object]] = {
    "text to tree": partial(parse_strategy, STRATEGY, source="bench.trim"),
    "rows": partial(rows_of, LLAMA, batch=1, sequence=8192, num_states=2, compute="bf16"),
    "the whole plan": compile_whole,
    "a pipeline of 16 x 256": simulate_large,
}


def seconds(call: Callable[[], object]) -> float:
    """Of one call."""
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


if __name__ == "__main__":
    sys.exit(main())
