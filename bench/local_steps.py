"""What do replicas that meet every so many steps, or send thin matrices, save in bytes, and what does it cost in loss?

    python bench/local_steps.py [--quick] [--json] [--pairs 3] [--steps 240]

Two replicas train a small decoder on Python's own sources, the same samples in every run: once with every gradient sent
in every step, once under each of the strategies below. The figures are those of `trimtab compare`: payload that all ranks
sent, loss of the last step, held-out loss after it. Every period divides the steps, so that all have just met when they
are scored. A round is a seed; the noise beside which a loss is to be seen is the spread of the plain run over them. Also
printed: the most that a rank sent in one step, which is what a link must carry at once.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import runs
from pairs import Row, parser, say, show
from runs import Workplace

STRATEGIES: Mapping[str, str] = {
    "plain": "MESH site 2",
    "local SGD, mean every 8": "MESH site 2\nAVERAGE params OVER site EVERY 8 STEPS",
    "DiLoCo, every 20": "MESH site 2\nAVERAGE params OVER site EVERY 20 STEPS USING nesterov(0.9)",
    "DiLoCo, every 20, momentum 0.5": "MESH site 2\nAVERAGE params OVER site EVERY 20 STEPS USING nesterov(0.5)",
    "fragments, mean every 12, 15, 20": """
MESH site 2
AVERAGE params OVER site EVERY 20 STEPS
AVERAGE params WHERE layer % 2 = 0 OVER site EVERY 12 STEPS
AVERAGE params WHERE layer % 2 = 1 OVER site EVERY 15 STEPS
""",
    "fragments, momentum 0.5": """
MESH site 2
AVERAGE params OVER site EVERY 20 STEPS USING nesterov(0.5)
AVERAGE params WHERE layer % 2 = 0 OVER site EVERY 12 STEPS USING nesterov(0.5)
AVERAGE params WHERE layer % 2 = 1 OVER site EVERY 15 STEPS USING nesterov(0.5)
""",
    "PowerSGD, rank 4": "MESH site 2\nREDUCE grads WHERE dims LIKE '%,%' OVER site COMPRESS powersgd(4)",
    "PowerSGD, rank 16": "MESH site 2\nREDUCE grads WHERE dims LIKE '%,%' OVER site COMPRESS powersgd(16)",
}

_JOB = """
run: {name}
model: {{preset: gpt-3m, layers: 2, embed: 128, heads: 4, mlp: 512, context: 64}}
data: {{text: text, tokenizer: bytes, sequence: 64}}
train:
  steps: {steps}
  seed: {seed}
  batch: 16
  optimizer: {{adamw: {{lr: 1e-3}}}}
  lr_schedule: {{cosine: {{warmup: {warmup}}}}}
orchestration: {{devices: 2}}
parallelism: |
  {strategy}
fault_tolerance: {{shares: "off", checkpoint: {{every: "off"}}}}
"""


def main() -> int:
    """Measure and print; returns the exit code."""
    made = parser(__doc__, rounds=3)
    made.add_argument("--steps", type=int, default=240, help="of each run; a multiple of 120 (%(default)s)")
    options = made.parse_args()
    strategies = dict(STRATEGIES)
    if options.quick:
        options.pairs, options.steps = 1, 20
        strategies = {name: STRATEGIES[name] for name in ("plain", "DiLoCo, every 20")}
    with runs.workplace(num_bytes=4_000_000) as place:
        found = [measure(place, strategies, seed, options) for seed in range(options.pairs)]
    losses = [compared[0]["eval_loss"]["first"] for compared, _ in found]
    extra: dict[str, Any] = {
        "noise of the held-out loss": f"{max(losses) - min(losses):.4f}, plain {[round(loss, 4) for loss in losses]}",
        **{
            f"most bytes in a step, {name}": f"{found[0][1][index]:,}"
            for index, name in enumerate(strategies)
        },
    }
    rows = [
        row
        for index, name in enumerate([name for name in strategies if name != "plain"])
        for row in rows_of(name, [compared[index] for compared, _ in found])
    ]
    show(
        "replicas that send less, against all gradients in every step",
        rows,
        is_json=options.json,
        extra=extra,
    )
    return 0


Outcomes = Mapping[str, Mapping[str, float]]
"""Of two runs, by name: ``first`` is the plain one's."""


def measure(
    place: Workplace, strategies: Mapping[str, str], seed: int, options: argparse.Namespace
) -> tuple[list[Outcomes], list[int]]:
    """All strategies from one seed: each compared with the first, and the most bytes of a step of each."""
    done = []
    for name, strategy in strategies.items():
        folder = place.run_job(write_job(place.folder, strategy, seed=seed, steps=options.steps))
        say(f"seed {seed}: {name}: {folder.name}")
        done.append(folder)
    most = [max(event["sent_bytes"] for event in runs.rank_events(folder, "step")) for folder in done]
    return [compared(done[0], folder) for folder in done[1:]], most


def write_job(folder: Path, strategy: str, *, seed: int, steps: int) -> str:
    """The job file of a strategy; its name."""
    lines = "\n  ".join(strategy.strip().splitlines())
    text = _JOB.format(name="apart", steps=steps, seed=seed, warmup=min(20, steps), strategy=lines)
    (folder / "apart.yaml").write_text(text, encoding="utf-8")
    return "apart.yaml"


def compared(first: Path, second: Path) -> Outcomes:
    """What ``trimtab compare`` says.

    Raises: AssertionError if one of them has trained on more tokens.
    """
    command = [sys.executable, "-m", "trimtab", "compare", str(first), str(second), "--json"]
    document = json.loads(subprocess.check_output(command, text=True))
    outcomes = {outcome["name"]: outcome for outcome in document["outcomes"]}
    assert outcomes["tokens"]["first"] == outcomes["tokens"]["second"], outcomes["tokens"]
    return outcomes


def rows_of(name: str, outcomes: list[Outcomes]) -> list[Row]:
    """Bytes and losses of one strategy, a figure a seed."""

    def figures(key: str, side: str) -> list[float]:
        return [found[key][side] for found in outcomes]

    return [
        Row(name=f"{name}: {words}", unit=unit, ours=figures(key, "second"), peer=figures(key, "first"))
        for key, words, unit in (
            ("sent_bytes", "bytes sent", "bytes"),
            ("eval_loss", "held-out loss", "nats"),
            ("loss", "loss of the last step", "nats"),
        )
    ]


if __name__ == "__main__":
    sys.exit(main())
