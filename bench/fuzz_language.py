"""Does any text break the compiler of the strategy language?

    python bench/fuzz_language.py [--inputs 1000000] [--processes 2] [--seed 0] [--quick] [--json]

Half of the texts are noise, half are printed random programs and their damaged copies. Every one must be
accepted, or refused with an error of ours; what is accepted is compiled all the way to a verified plan, for a small
dense network or one with experts, on 64 devices of two kinds, or refused there. Printed: how many of each half are
accepted, how many of them become plans, the longest processor time that one text took and that text, and everything
that is a bug. Exit code 1 if there is one.
"""

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the texts come from the tests' generator

from tests.spec.language.fuzzing import DEVICES, Outcome, compile_text, fuzz
from trimtab.catalog import cluster, network
from trimtab.plan.compiling import compile_program
from trimtab.plan.training import Training
from trimtab.spec import StrategyError, parse_strategy, resolve_mesh

CHUNK = 5000
"""Texts of one seed."""

QUICK = 2 * CHUNK


def main() -> int:
    """Fuzz and print; returns the exit code."""
    options = _parser().parse_args()
    inputs = QUICK if options.quick else options.inputs
    seeds = range(options.seed, options.seed + -(-inputs // CHUNK))
    started_s = time.perf_counter()
    outcome, num_plans = Outcome(), 0
    # A fresh interpreter each: nothing that one process has loaded is shared.
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for done, found in enumerate(pool.imap_unordered(chunk, seeds), start=1):
            outcome.add(found[0])
            num_plans += found[1]
            print(f"\r{done * CHUNK:,} of {len(seeds) * CHUNK:,}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    _show(outcome, num_plans, time.perf_counter() - started_s, is_json=options.json)
    return 1 if outcome.failures else 0


def chunk(seed: int) -> tuple[Outcome, int]:
    """What becomes of the texts of one seed, and how many become plans."""
    num_plans = 0

    def compile_whole(text: str) -> None:
        nonlocal num_plans
        compile_text(text)
        num_plans += becomes_plan(text)

    return fuzz(seed=seed, inputs=CHUNK, compile_text=compile_whole), num_plans


NETWORKS = (network("gpt-3m", layers=2), network("moe-3m", layers=2))
CLUSTER = cluster("64xA100+64xH100")


def becomes_plan(text: str) -> bool:
    """Whether a program that is right by its text becomes a plan; it may be refused with an error of ours."""
    program = parse_strategy(text, source="fuzz.trim")
    training = Training(
        network=NETWORKS[len(text) % len(NETWORKS)],
        batch=DEVICES,
        microbatch=1,
        sequence=128,
        shares=None,
        compute="fp32",
        num_states=2,
    )
    try:
        compile_program(program, training, mesh=resolve_mesh(program, DEVICES), cluster=CLUSTER)
    except StrategyError:
        return False
    return True


def _show(outcome: Outcome, num_plans: int, elapsed_s: float, *, is_json: bool) -> None:
    inputs = outcome.num_noise + outcome.num_damaged
    document = {
        "inputs": inputs,
        "inputs_per_s": inputs / elapsed_s,
        "noise": {"inputs": outcome.num_noise, "accepted": outcome.num_noise_accepted},
        "programs": {"inputs": outcome.num_damaged, "accepted": outcome.num_damaged_accepted},
        "plans": num_plans,
        "worst_s": outcome.worst_s,
        "worst_text": outcome.worst_text,
        "failures": outcome.failures,
    }
    if is_json:
        print(json.dumps(document, indent=2))
        return
    print(f"{inputs:,} texts in {elapsed_s:.0f} s, {inputs / elapsed_s:,.0f} a second")
    for name in ("noise", "programs"):
        half = document[name]
        share = half["accepted"] / half["inputs"]
        print(f"  {name:9} {half['inputs']:>9,}  accepted {half['accepted']:>9,} ({share:.1%})")
    print(f"plans: {num_plans:,}")
    print(f"worst processor time {outcome.worst_s * 1e3:.1f} ms, for {outcome.worst_text[:200]!r}")
    print(f"bugs: {len(outcome.failures)}")
    for failure in outcome.failures[:20]:
        print(f"  {failure}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000, help="texts to try")
    parser.add_argument("--processes", type=int, default=2, help="processes that try them")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each chunk of texts has its own")
    parser.add_argument("--quick", action="store_true", help="a few texts, to see that the script works")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


if __name__ == "__main__":
    sys.exit(main())
