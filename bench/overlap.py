"""What do sums of gradients save that run beside the backward pass, in a slow network and in none?

    python bench/overlap.py [--quick] [--json] [--pairs 8] [--rates none,400mbit,100mbit] [--steps 3]

Each rank is a host: a network namespace with a link of a limited rate (bench/namespaces.py), started by torchrun as on
several real hosts; `none` sets no limit. Both sides are the same plan in the same processes, on the same
batches: one starts each sum when its gradients are complete, one runs all of them in their places after the backward pass.
They take some steps in turn, every other round in the opposite order. Their weights must have the same bits at the end, or
there is no figure.

On a machine whose ranks leave no core free, a sum beside the backward pass takes the processor from it: in a fast network
nothing is to be gained there, and the claim is that nothing is lost.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from namespaces import Hosts
from pairs import Row, measure_in_turn, parser, say, show
from runs import QUICKSTART, SMALL, Size

RANKS, SEED = 2, 3
AT_MOST, AT_MOST_UNLIMITED = 0.9, 1.03
"""Of the time of a step whose sums wait for the end of the backward pass."""

LAYOUTS: Mapping[str, tuple[str, int | None]] = {
    "replicas": ("MESH dp 2\nREDUCE grads OVER dp BUCKET {bucket}", None),
    "replicas, 4 shares": ("MESH dp 2\nREDUCE grads OVER dp BUCKET {bucket}", 4),
    "states in pieces": ("MESH dp 2\nSTORE states OVER dp\nREDUCE grads OVER dp BUCKET {bucket}", None),
    "everything in pieces": ("MESH dp 2\nSTORE params, grads, states OVER dp", None),
    "powersgd(8)": (
        "MESH dp 2\nREDUCE grads WHERE dims LIKE '%,%' OVER dp COMPRESS powersgd(8)",
        None,
    ),
}
"""Strategy and shares."""


def main() -> int:
    """Measure and print; returns the exit code."""
    made = parser(__doc__, rounds=8)
    made.add_argument(
        "--rates", default="none,400mbit,100mbit", help="of each link and direction (%(default)s)"
    )
    made.add_argument("--layouts", default=";".join(LAYOUTS), help="separated by semicolons (%(default)s)")
    made.add_argument("--bucket", default="1MB", help="(%(default)s)")
    made.add_argument("--steps", type=int, default=3, help="of each figure (%(default)s)")
    made.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.worker:
        work(options)
        return 0
    if options.quick:
        options.pairs, options.steps, options.rates, options.layouts = 1, 1, "none", "replicas"
    rows = []
    for rate in options.rates.split(","):
        for layout, found in measured(rate, options).items():
            bar = AT_MOST_UNLIMITED if rate == "none" else AT_MOST
            name = f"{layout}, {'no limit' if rate == 'none' else rate}"
            rows.append(
                Row(name=name, unit="s a step", ours=found["early"], peer=found["placed"], at_most=bar)
            )
    show("seconds of a step: sums beside the backward pass against after it", rows, is_json=options.json)
    return 0


def measured(rate: str, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Figures of both sides by layout, one a round.

    Raises: RuntimeError if a rank fails.
    """
    say(f"links: {rate}")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        hosts = stack.enter_context(Hosts(RANKS, None if rate == "none" else rate))
        out = Path(folder) / "figures.json"
        words = [__file__, "--worker", str(out), "--pairs", str(options.pairs), "--steps", str(options.steps)]
        words += [
            "--layouts",
            options.layouts,
            "--bucket",
            options.bucket,
            *(["--quick"] if options.quick else []),
        ]
        hosts.run(
            [os.path.abspath(words[0]), *words[1:]],
            Path(folder),
            {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        found: dict[str, dict[str, list[float]]] = json.loads(out.read_text(encoding="utf-8"))
    return found


# What follows runs on every rank: only ranks import torch.


def work(options: argparse.Namespace) -> None:
    """A rank's part: all layouts, both sides in turn."""
    import torch
    import torch.distributed as dist

    from trimtab.runtime.lowering import Wires

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    wires = Wires(dist.get_rank(), dist.get_world_size())
    found = {name: compare(wires, name, options) for name in options.layouts.split(";")}
    if wires.rank == 0:
        options.worker.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def compare(wires: Any, layout: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of a step of both sides, one a round.

    Raises: AssertionError if their bits differ.
    """
    import torch

    from trimtab.runtime.lowering import Rank, Rules
    from trimtab.runtime.optimizers import AdamW

    size = SMALL if options.quick else QUICKSTART
    plan, shares = plan_of(size, layout, options.bucket), LAYOUTS[layout][1]
    optimizer = AdamW(lr=1e-3)
    sides = {
        name: Rank(
            plan,
            wires.rank,
            wires,
            Rules(optimizer=optimizer, learning_rate=lambda _: optimizer.lr, clip=1.0),
            seed=SEED,
            adds_by_share=shares is not None,
            sends_beside=name == "early",
        )
        for name in ("early", "placed")
    }
    batches = [microbatches(plan, step) for step in range(options.steps)]
    measures = {name: partial(step_s, rank, batches) for name, rank in sides.items()}
    for measure in measures.values():
        measure()
    figures = measure_in_turn(measures, rounds=options.pairs)
    for name, tensor in sides["early"].stored.items():
        assert torch.equal(tensor, sides["placed"].stored[name]), f"{layout}: {name} has other bits"
    return figures


def plan_of(size: Size, layout: str, bucket: str) -> Any:
    """The plan of a layout for GPT-2's network over bytes, without dropout."""
    from trimtab.catalog import Machine, cluster, network
    from trimtab.plan.compiling import compile_program
    from trimtab.plan.training import Training
    from trimtab.spec import parse_strategy, resolve_mesh

    names = ("layers", "embed", "heads", "mlp", "context")
    fields = {name: getattr(size, name) for name in names}
    text, shares = LAYOUTS[layout]
    program = parse_strategy(text.format(bucket=bucket), source=layout)
    training = Training(
        network=network("gpt-3m", **fields, kv_heads=size.heads, tied=False),
        batch=size.batch,
        microbatch=size.batch // (shares or RANKS),
        sequence=size.sequence,
        shares=shares,
        compute="fp32",
        num_states=2,
        clips=True,
    )
    machine = Machine(num_devices=RANKS, cores=RANKS, memory_bytes=16 * 2**30)
    return compile_program(
        program, training, mesh=resolve_mesh(program, RANKS), cluster=cluster("this-machine", machine=machine)
    )


def microbatches(plan: Any, number: int) -> Sequence[Any]:
    """Random tokens, the same on every rank."""
    import torch

    from trimtab.runtime.lowering.batches import microbatches_of

    work = plan.work
    chance = torch.Generator().manual_seed(number)
    tokens, targets = (
        torch.randint(0, plan.network.vocab, (work.batch, work.sequence), generator=chance) for _ in range(2)
    )
    return microbatches_of(work, tokens, targets)


def step_s(rank: Any, batches: Sequence[Any]) -> float:
    """Seconds of a step, which all ranks begin together."""
    import time

    import torch.distributed as dist

    dist.barrier()
    start_s = time.perf_counter()
    for number, batch in enumerate(batches):
        rank.step(batch, number)
    dist.barrier()
    return (time.perf_counter() - start_s) / len(batches)


if __name__ == "__main__":
    sys.exit(main())
