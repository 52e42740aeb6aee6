"""Does a policy of its own for each kind of gradient beat every policy for all gradients, where the network is slow?

    python bench/slow_network.py [--quick] [--json] [--pairs 5] [--rate 20mbit] [--seeds 3] [--losses FILE]

Each rank is a host: a network namespace with a link of a limited rate (bench/namespaces.py), started by torchrun as on
several real hosts. A small decoder trains on Python's own sources, tokens by BPE. Two things are measured:

1. Loss, on this machine's loopback, for bits do not depend on how fast they travel. Every policy trains the same steps
   from the same seeds, and no text comes twice, so the mean loss of the last 50 steps is one on text not seen before.
   The *noise* is the spread of that loss over the seeds of the run without compression, largest less smallest. The *gap*
   of a policy is the mean of its loss less that without compression, seed by seed. A policy whose gap is larger than
   the noise is no candidate: it is faster at another result.
2. Time of a step in the slow network, in rounds; the first steps are dropped. The losses of these steps must be those of
   the first run, bit for bit, or there is no figure.

Printed is the time of a step of the mixed policy against each uniform one, round by round; the claim is about the
fastest uniform candidate. Against that one also the time to the same loss, which needs no noise: the steps until the
mean over the seeds and the last 50 steps is down to what both reach, times the time of a step. Also printed: payload
that a rank sends in a step as runs count it, and all bytes that its link carried in the whole run, start and evaluation
included, over that payload.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import runs
from namespaces import Hosts
from pairs import Row, measure_in_turn, parser, say, show
from runs import Workplace

RANKS = 2
DROPPED = 3
"""First steps that do not count."""
WINDOW = 50
"""Steps whose losses are averaged."""
AT_MOST = 0.95
"""Of the time of a step with the fastest uniform candidate."""

MIXED = "mixed"
POLICIES: Mapping[str, str] = {
    "none": "",
    "bf16": "REDUCE grads OVER dp COMPRESS bf16",
    "int8": "REDUCE grads OVER dp COMPRESS int8",
    "topk(0.1)": "REDUCE grads OVER dp COMPRESS topk(0.1)",
    "topk(0.02)": "REDUCE grads OVER dp COMPRESS topk(0.02)",
    "powersgd(16)": "REDUCE grads OVER dp COMPRESS powersgd(16)",
    "powersgd(4)": "REDUCE grads OVER dp COMPRESS powersgd(4)",
    MIXED: """
      REDUCE grads WHERE kind = 'linear' OVER dp COMPRESS powersgd(8)
      REDUCE grads WHERE kind = 'embedding' OVER dp COMPRESS topk(0.04)
      REDUCE grads WHERE kind = 'head' OVER dp COMPRESS powersgd(16)
    """,
}
"""Uniform ones say the same of all gradients. The mixed one: matrices of layers are summed over many tokens and nearly of
low rank; of an embedding only the rows of the tokens in the batch have a gradient; the head's is of low rank
too, though not as low. Norms, which no line names, travel as they are."""

_JOB = """
run: {name}
model: {{preset: llama-3m, layers: 2, embed: 128, heads: 4, kv_heads: 2, mlp: 384, context: 64, vocab: 4096}}
data: {{text: text, tokenizer: {{bpe: {{vocab: 4096}}}}, sequence: 64}}
train:
  steps: {steps}
  seed: {seed}
  batch: 8
  optimizer: {{adamw: {{lr: 1e-3}}}}
  lr_schedule: {{constant: {{warmup: 5}}}}
orchestration: {{devices: {ranks}}}
parallelism: |
  MESH dp {ranks}
  {policy}
fault_tolerance: {{shares: "off", checkpoint: {{every: "off"}}}}
"""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a policy learns.

    Args:
        by_seed: Loss of every step, in nats per token.
        payload_bytes: That a rank sends in a step.
    """

    by_seed: Sequence[Sequence[float]]
    payload_bytes: int

    @property
    def final(self) -> list[float]:
        """Mean of the last steps, by seed."""
        return [statistics.fmean(losses[-WINDOW:]) for losses in self.by_seed]

    @property
    def curve(self) -> list[float]:
        """After each step the mean over the seeds and the last steps, from the first full window on."""
        means = [statistics.fmean(losses) for losses in zip(*self.by_seed, strict=True)]
        window = min(WINDOW, len(means))
        return [statistics.fmean(means[end - window : end]) for end in range(window, len(means) + 1)]

    def steps_to(self, loss: float) -> int:
        """Steps until the curve is down to a loss that it reaches."""
        curve = self.curve
        reached = next(index for index, found in enumerate(curve) if found <= loss)
        return len(self.by_seed[0]) - len(curve) + reached + 1


@dataclass(kw_only=True)
class Network:
    """The slow network, and what its links have carried.

    Args:
        hosts: One for each rank.
        place: Where runs are made.
        steps: Of a run.
        losses: That must come out.
        overheads: By policy, bytes on the first host's link over payload, one a run.
    """

    hosts: Hosts
    place: Workplace
    steps: int
    losses: Mapping[str, Losses]
    overheads: dict[str, list[float]] = field(default_factory=dict)

    def step_s(self, policy: str) -> float:
        """Seconds of a steady step.

        Raises: RuntimeError if the run has other losses than on loopback.
        """
        job = write_job(self.place.folder, policy, steps=self.steps, seed=0)
        before = self.hosts.sent_bytes(0)
        run = self.hosts.train(job, self.place.folder, {})
        carried = self.hosts.sent_bytes(0) - before
        found, expected = step_losses(run), self.losses[policy].by_seed[0][: self.steps]
        if found != list(expected):
            raise RuntimeError(f"{policy}: losses {found} here, {list(expected)} on loopback")
        self.overheads.setdefault(policy, []).append(
            carried / (self.losses[policy].payload_bytes * self.steps)
        )
        steady = runs.rank_events(run, "step")[DROPPED:]
        return float((steady[-1]["end_ns"] - steady[0]["start_ns"]) / 1e9 / len(steady))


def main() -> int:
    """Measure and print; returns the exit code."""
    made = parser(__doc__, rounds=5)
    made.add_argument("--rate", default="20mbit", help="of each link and direction (%(default)s)")
    made.add_argument("--seeds", type=int, default=3, help="of each policy (%(default)s)")
    made.add_argument("--steps", type=int, default=200, help="whose loss is compared (%(default)s)")
    made.add_argument(
        "--policies", default=",".join(POLICIES), help="mixed and none among them (%(default)s)"
    )
    made.add_argument(
        "--losses", type=Path, metavar="FILE", help="keep losses there, and take those that are there"
    )
    made.add_argument("--timed", type=int, default=13, help="steps of each timed run (%(default)s)")
    options = made.parse_args()
    if options.quick:
        options.pairs, options.seeds, options.steps, options.timed = 1, 2, 8, 8
        options.policies = f"{MIXED},none,int8"
    names = options.policies.split(",")
    with runs.workplace(num_bytes=4_000_000) as place:
        losses = learned(place, names, options)
        with Hosts(RANKS, options.rate) as hosts:
            network = Network(hosts=hosts, place=place, steps=options.timed, losses=losses)
            measures = {name: partial(network.step_s, name) for name in names}
            found = measure_in_turn(measures, rounds=options.pairs)
    rows, facts = judged(losses, found, network)
    title = f"seconds of a step, {RANKS} ranks, links of {options.rate}: mixed policy against uniform ones"
    show(title, rows, is_json=options.json, extra=facts)
    return 0


def learned(place: Workplace, names: Sequence[str], options: argparse.Namespace) -> dict[str, Losses]:
    """The losses of all policies; those in the file are taken from it, for their bits are the same every time."""
    kept: dict[str, Any] = {}
    if options.losses is not None and options.losses.exists():
        kept = json.loads(options.losses.read_text(encoding="utf-8"))
    found = {}
    for name in names:
        key = f"{name}: {POLICIES[name].split()}, {options.steps} steps, {options.seeds} seeds"
        if key not in kept:
            kept[key] = asdict(learn(place, name, options))
            if options.losses is not None:
                options.losses.write_text(json.dumps(kept), encoding="utf-8")
        found[name] = Losses(**kept[key])
    return found


def learn(place: Workplace, policy: str, options: argparse.Namespace) -> Losses:
    """The losses of a policy, on loopback."""
    done = [train(place, policy, steps=options.steps, seed=seed) for seed in range(options.seeds)]
    payload = runs.rank_events(done[0], "step")[-1]["sent_bytes"]
    found = Losses(by_seed=[step_losses(run) for run in done], payload_bytes=payload)
    say(f"{policy}: loss by seed {rounded(found.final)}, {payload:,} bytes a step")
    return found


def train(place: Workplace, policy: str, *, steps: int, seed: int) -> Path:
    """A run of the command line, to its end."""
    return place.run_job(write_job(place.folder, policy, steps=steps, seed=seed))


def write_job(folder: Path, policy: str, *, steps: int, seed: int) -> str:
    """The job file of a policy; its name."""
    lines = [line.strip() for line in POLICIES[policy].strip().splitlines()]
    name = "".join(letter for letter in policy if letter.isalnum())
    text = _JOB.format(name=name, steps=steps, seed=seed, ranks=RANKS, policy="\n  ".join(lines))
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return f"{name}.yaml"


def step_losses(run: Path) -> list[float]:
    """Of every step, in order; a rank that was replaced has several journals."""
    found = {event["step"]: float(event["loss"]) for event in runs.rank_events(run, "commit")}
    return [found[step] for step in sorted(found)]


def judged(
    losses: Mapping[str, Losses], times: Mapping[str, Sequence[float]], network: Network
) -> tuple[list[Row], dict[str, Any]]:
    """The rows, the bar at the fastest uniform candidate, and what they rest on."""
    plain = losses["none"].final
    noise = max(plain) - min(plain)
    gaps = {
        name: statistics.fmean(own - other for own, other in zip(found.final, plain, strict=True))
        for name, found in losses.items()
    }
    uniform = [name for name in losses if name != MIXED]
    candidates = [name for name in uniform if gaps[name] <= noise]
    fastest = min(candidates, key=lambda name: statistics.median(times[name]))
    is_valid = gaps[MIXED] <= noise
    rows = [
        Row(
            name=f"mixed / {name}" + ("" if name in candidates else " (no candidate: another loss)"),
            unit="s a step",
            ours=times[MIXED],
            peer=times[name],
            at_most=AT_MOST if name == fastest and is_valid else None,
        )
        for name in uniform
    ]
    rows.append(to_same_loss(losses, times, fastest))
    facts: dict[str, Any] = {
        "noise of the loss": f"{noise:.4f}, without compression {rounded(plain)}",
        "fastest uniform candidate": fastest,
        "mixed has the same loss within the noise": is_valid,
    }
    for name, found in losses.items():
        facts[name] = (
            f"loss {statistics.fmean(found.final):.4f}, gap {gaps[name]:+.4f}, "
            f"{found.payload_bytes:,} bytes a step and rank, "
            f"{statistics.median(network.overheads[name]):.2f} times that on the link"
        )
    return rows, facts


def to_same_loss(losses: Mapping[str, Losses], times: Mapping[str, Sequence[float]], fastest: str) -> Row:
    """Time of the mixed policy to a loss that the fastest uniform candidate reaches too."""
    loss = max(losses[name].curve[-1] for name in (MIXED, fastest))
    ours, peer = (losses[name].steps_to(loss) for name in (MIXED, fastest))
    return Row(
        name=f"mixed / {fastest}, to a loss of {loss:.3f}: {ours} and {peer} steps",
        unit="s",
        ours=[ours * step_s for step_s in times[MIXED]],
        peer=[peer * step_s for step_s in times[fastest]],
        at_most=AT_MOST,
    )


def rounded(numbers: Sequence[float]) -> list[float]:
    """For people."""
    return [round(number, 4) for number in numbers]


if __name__ == "__main__":
    sys.exit(main())
