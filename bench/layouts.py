"""How fast are plans carried out against hand-written torch with the same layout?

    python bench/layouts.py [--quick] [--json] [--pairs 10] [--sizes quickstart,small,large] [--layouts ddp,pp]

Two ranks on one thread each hold both sides at once: a plan under `trimtab.runtime.lowering`, and the loop of
bench/peers/loops.py. They take some steps in turn, every other round in the opposite order, on the same batches, from
the same weights, with the same product of matrices. Their losses must agree, or there is no figure.

A second row takes the processor time of both ranks: what the work costs, and not who waited for whom. On a machine that
others use it varies less.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pairs import Row, measure_in_turn, parser, say, show
from runs import SMALL, Size
from trimtab.catalog import Machine, Network, cluster, network
from trimtab.plan.compiling import compile_program
from trimtab.plan.physical import Plan
from trimtab.plan.training import Training
from trimtab.runtime.lowering import Crew, Rank, Rules, Wires
from trimtab.runtime.lowering.batches import microbatches_of
from trimtab.runtime.optimizers import AdamW
from trimtab.spec import parse_strategy, resolve_mesh

RANKS, SEED, AT_LEAST = 2, 3, 0.97
LARGEST_DIFFERENCE = 1e-4
"""Of the losses of both sides, as a part of them."""

SIZES = {
    size.name: size
    for size in (
        Size(name="quickstart", layers=8, embed=256, heads=8, mlp=1024, context=256, batch=32, sequence=128),
        replace(SMALL, batch=32),
        Size(name="large", layers=8, embed=512, heads=8, mlp=2048, context=256, batch=16, sequence=256),
    )
}

PROGRAMS = {
    "ddp": "MESH dp 2",
    "fsdp": "MESH dp 2\nSTORE params, grads, states OVER dp",
    "tp": "MESH tp 2\nSPLIT heads, mlp, vocab OVER tp",
    "tp-dtensor": "MESH tp 2\nSPLIT heads, mlp, vocab OVER tp",
    "pp": "MESH pp 2\nSPLIT layers OVER pp USING 1f1b MICROBATCHES 8",
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What both sides do.

    Args:
        layout: One of PROGRAMS.
        plan: Of it.
        network: That is trained.
        steps: Of one figure.
        rounds: Figures of each side.
    """

    layout: str
    plan: Plan
    network: Network
    steps: int
    rounds: int


def main() -> int:
    """Measure and print; returns the exit code."""
    made = parser(__doc__, rounds=10)
    made.add_argument("--steps", type=int, default=4, help="of each figure (%(default)s)")
    made.add_argument("--sizes", default=",".join(SIZES), help="(%(default)s)")
    made.add_argument("--layouts", default=",".join(PROGRAMS), help="(%(default)s)")
    options = made.parse_args()
    if options.quick:
        options.steps, options.pairs, options.sizes = 2, 1, "small"
    rows: list[Row] = []
    with Crew(RANKS, patience_s=1200.0) as crew:
        for size in options.sizes.split(","):
            for layout in options.layouts.split(","):
                rows += measure(crew, SIZES[size], layout, options)
    show("tokens per second of plans against hand-written torch", rows, is_json=options.json)
    return 0


def measure(crew: Crew, size: Size, layout: str, options: argparse.Namespace) -> list[Row]:
    """Both sides of one layout at one size."""
    say(f"{size.name}: {layout}")
    net = decoder_of(size)
    comparison = Comparison(
        layout=layout,
        plan=plan_of(size, layout, net),
        network=net,
        steps=options.steps,
        rounds=options.pairs,
    )
    wall, cpu = crew.run(compare, comparison)[0]
    row = partial(Row, name=f"{size.name}: {layout}")
    return [
        row(unit="tokens/s", ours=wall["ours"], peer=wall["peer"], at_least=AT_LEAST),
        row(unit="tok/cpu s", ours=cpu["ours"], peer=cpu["peer"]),
    ]


def decoder_of(size: Size) -> Network:
    """The network of a size: GPT-2's, over bytes."""
    names = ("layers", "embed", "heads", "mlp", "context")
    return network("gpt-3m", **{name: getattr(size, name) for name in names}, kv_heads=size.heads)


def plan_of(size: Size, layout: str, net: Network) -> Plan:
    """A layout at one size; a rank's rows are one microbatch, but for the pipeline's."""
    program = parse_strategy(PROGRAMS[layout], source=layout)
    microbatches = {"ddp": RANKS, "fsdp": RANKS, "pp": 8}.get(layout, 1)
    training = Training(
        network=net,
        batch=size.batch,
        microbatch=size.batch // microbatches,
        sequence=size.sequence,
        shares=None,
        compute="fp32",
        num_states=2,
        clips=True,
    )
    machine = Machine(num_devices=RANKS, cores=RANKS, memory_bytes=16 * 2**30)
    mesh = resolve_mesh(program, RANKS)
    return compile_program(program, training, mesh=mesh, cluster=cluster("this-machine", machine=machine))


Step = Callable[[Tensor, Tensor], float | None]
"""From tokens and targets of the whole batch to the loss per token, on the ranks that know it."""


Figures = dict[str, list[float]]
"""By side, one a round."""


def compare(wires: Wires, comparison: Comparison) -> tuple[Figures, Figures]:
    """Runs on every rank: both sides, in turn; tokens per second of each round, and per second of processor time.

    Raises: AssertionError if the losses differ.
    """
    sides = {"ours": our_side(wires, comparison), "peer": peer_side(wires, comparison)}
    batches = [batch(comparison, number) for number in range(comparison.steps)]
    losses = {name: [step(*each) for each in batches] for name, step in sides.items()}
    check(losses)
    cpu: Figures = {name: [] for name in sides}
    measures = {name: partial(tokens_per_s, step, batches, cpu[name]) for name, step in sides.items()}
    return measure_in_turn(measures, rounds=comparison.rounds), cpu


def our_side(wires: Wires, comparison: Comparison) -> Step:
    """The plan."""
    plan = comparison.plan
    optimizer = AdamW(lr=loops().LR, betas=loops().BETAS, weight_decay=loops().DECAY)
    rules = Rules(optimizer=optimizer, learning_rate=lambda _: optimizer.lr, clip=loops().CLIP)
    rank = Rank(plan, wires.rank, wires, rules, seed=SEED)
    return lambda tokens, targets: rank.step(microbatches_of(plan.work, tokens, targets), 0).loss


def peer_side(wires: Wires, comparison: Comparison) -> Step:
    """The hand-written loop."""
    step: Step = loops().LOOPS[comparison.layout](comparison.network, SEED, wires.rank, wires.size).step
    return step


def loops() -> Any:
    """The peers, which only ranks import."""
    folder = str(Path(__file__).with_name("peers"))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("loops")


def batch(comparison: Comparison, number: int) -> tuple[Tensor, Tensor]:
    """Random tokens, the same on every rank."""
    work, vocab = comparison.plan.work, comparison.network.vocab
    chance = torch.Generator().manual_seed(number)
    tokens, targets = (
        torch.randint(0, vocab, (work.batch, work.sequence), generator=chance) for _ in range(2)
    )
    return tokens, targets


def check(losses: dict[str, list[float | None]]) -> None:
    """Both sides must compute the same thing."""
    for ours, peer in zip(losses["ours"], losses["peer"], strict=True):
        if ours is not None and peer is not None:
            assert abs(ours - peer) <= LARGEST_DIFFERENCE * peer, losses


def tokens_per_s(step: Step, batches: Sequence[tuple[Tensor, Tensor]], per_cpu_s: list[float]) -> float:
    """Of some steps, which all ranks begin together.

    Args:
        step: Of one side.
        batches: One a step.
        per_cpu_s: Gets the tokens per second of all ranks' processor time.
    """
    num_tokens = sum(tokens.numel() for tokens, _ in batches)
    dist.barrier()
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    for tokens, targets in batches:
        step(tokens, targets)
    dist.barrier()
    taken_s = time.perf_counter() - start_s
    cpu_s = torch.tensor(time.process_time() - start_cpu_s, dtype=torch.float64)
    dist.all_reduce(cpu_s)
    per_cpu_s.append(num_tokens / float(cpu_s))
    return num_tokens / taken_s


if __name__ == "__main__":
    sys.exit(main())
