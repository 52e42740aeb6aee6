"""How fast is a run against hand-written torch that trains the same network on the same text?

    python bench/overhead.py [--quick] [--json] [--pairs 10]

The peer is bench/peers/ddp.py: DDP, fused AdamW, clipping, cosine rate, one thread a rank. It runs the same module
(`trimtab.runtime.decoder.Decoder`), so that the ratio is the price of Trimtab's own work, and once more a plain
torch.nn network of the same shape. Tokens per second of steady steps: the first ones are dropped, on both sides.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

import runs
from pairs import Row, measure_in_turn, parser, say, show
from runs import QUICKSTART, SMALL, TINY, Size, Workplace

DROPPED = 5
"""First steps that do not count: kernels are chosen, memory is first touched."""


def main() -> int:
    """Measure and print; returns the exit code."""
    made = parser(__doc__, rounds=10)
    made.add_argument("--steps", type=int, default=15, help="of each run (%(default)s)")
    made.add_argument("--sizes", default="quickstart,small,tiny", help="(%(default)s)")
    options = made.parse_args()
    if options.quick:
        options.steps, options.pairs, options.sizes = 8, 1, "tiny"
    rows: list[Row] = []
    with runs.workplace() as place:
        for size in (QUICKSTART, SMALL, TINY):
            if size.name in options.sizes.split(","):
                rows += measure(place, size, options)
    show("tokens per second against hand-written torch", rows, is_json=options.json)
    return 0


def measure(place: Workplace, size: Size, options: argparse.Namespace) -> list[Row]:
    """Every comparison at one size."""
    trimtab = partial(tokens_per_s, place, size, options.steps)
    peer = partial(peer_tokens_per_s, place, size, options.steps)
    cuts = {ranks: 1 if options.quick else fastest_cut(peer, ranks) for ranks in (1, 2)}
    measures: dict[str, Callable[[], float]] = {
        "shares": lambda: trimtab(devices=2, shares="4"),
        "off": lambda: trimtab(devices=2, shares='"off"'),
        "peer": lambda: peer(ranks=2, model="decoder", accumulate=cuts[2]),
        "plain": lambda: peer(ranks=2, model="plain", accumulate=cuts[2]),
        "alone": lambda: trimtab(devices=1, shares="4"),
        "peer alone": lambda: peer(ranks=1, model="decoder", accumulate=cuts[1]),
    }
    found = measure_in_turn(measures, rounds=options.pairs)
    row = partial(Row, unit="tokens/s")
    return [
        row(name=f"{size.name}: 2 ranks, 4 shares / DDP", ours=found["shares"], peer=found["peer"]),
        row(name=f"{size.name}: 2 ranks, shares off / DDP", ours=found["off"], peer=found["peer"]),
        row(name=f"{size.name}: 1 rank, 4 shares / torch", ours=found["alone"], peer=found["peer alone"]),
        row(name=f"{size.name}: 2 ranks, 4 shares / DDP of plain torch.nn", ours=found["shares"], peer=found["plain"]),
        row(
            name=f"{size.name}: 2 ranks / 1 rank",
            ours=found["shares"],
            peer=found["alone"],
            at_least=1.6 if size is QUICKSTART else None,
        ),
        row(name=f"{size.name}: DDP, 2 ranks / 1 rank", ours=found["peer"], peer=found["peer alone"]),
    ]  # fmt: skip


def tokens_per_s(place: Workplace, size: Size, steps: int, *, devices: int, shares: str) -> float:
    """Of the steady steps of a run, by its first rank's journal."""
    run = place.run(size, steps=steps, devices=devices, shares=shares)
    journal = runs.events(run, "rank-0-0", "step")
    return steady_tokens_per_s([(step["start_ns"], step["end_ns"]) for step in journal], size)


def steady_tokens_per_s(times_ns: Sequence[tuple[int, int]], size: Size) -> float:
    """Tokens over the time from the start of the first steady step to the end of the last step."""
    steady = times_ns[DROPPED:]
    return size.batch * size.sequence * len(steady) / ((steady[-1][1] - steady[0][0]) / 1e9)


def peer_tokens_per_s(
    place: Workplace, size: Size, steps: int, *, ranks: int, model: str, accumulate: int
) -> float:
    """The peer's, by equal timers."""
    options = {"steps": str(steps), "model": model, "accumulate": str(accumulate), "text": "text"}
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    times_ns = place.peer("ddp.py", *size.network_options(), *arguments, ranks=ranks)["times_ns"]
    return steady_tokens_per_s(times_ns, size)


def fastest_cut(peer: Callable[..., float], ranks: int) -> int:
    """Into how many microbatches an expert would cut the peer's batch: whatever is fastest here."""
    speeds = {cut: peer(ranks=ranks, model="decoder", accumulate=cut) for cut in (1, 2, 4)}
    say(f"peer on {ranks} ranks, tokens/s by microbatches a step: {speeds}")
    return max(speeds, key=lambda cut: speeds[cut])


if __name__ == "__main__":
    sys.exit(main())
