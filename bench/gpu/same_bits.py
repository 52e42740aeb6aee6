"""Has a run on one device the same bits each time, through a death and with its kernels compiled?

    python bench/gpu/same_bits.py [--device cuda] [--size smallest] [--json]

Each row is a run of one job again: `weights_sha256`, loss and held-out loss must be those of the first. Deterministic kernels
are switched on by Trimtab itself. Where a row differs the exit code is 1: on such a device the promise of the same bits
must not be made.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from decoder import SIZES

import runs
from pairs import machine, say

_JOB = """
run: bits
model: {{preset: llama-3m, layers: {layers}, embed: {embed}, heads: {heads}, kv_heads: {kv_heads}, mlp: {mlp}, vocab: {vocab}, context: {sequence}}}
data: {{text: text, tokenizer: bytes, sequence: {sequence}}}
train: {{steps: 8, batch: {batch}, microbatch: {microbatch}, compute: {compute}, optimizer: {{adamw: {{lr: 1e-3}}}}}}
orchestration: {{devices: 1, environment: {{set: {{CUDA_VISIBLE_DEVICES: "{visible}"}}}}}}
fault_tolerance: {{shares: 2, checkpoint: {{every: 2}}, detection: {{first_step: 1800s, heartbeat: 60s, evaluation: 1800s}}}}
"""
_SAME = ("weights_sha256", "loss", "eval_loss")


def main() -> int:
    """Run and compare; returns the exit code."""
    options = parse()
    device, compute = options.device, "fp32" if options.device == "cpu" else "bf16"
    again = {
        "again": [],
        "killed in step 5": ["--inject", "kill:rank=0,step=5,phase=compute"],
        "logits in chunks": ["--set", "parallelism=\"RECOMPUTE activations WHERE name = 'logits'\""],
        "logits in chunks, again": ["--set", "parallelism=\"RECOMPUTE activations WHERE name = 'logits'\""],
    }
    if device != "cpu":
        again |= {name: ["--set", "train.compile=blocks"] for name in ("compiled", "compiled, again")}
    with runs.workplace(num_bytes=2_000_000) as place:
        visible = "" if device == "cpu" else "0"
        job = _JOB.format(**vars(SIZES[options.size]), compute=compute, visible=visible)
        (place.folder / "job.yaml").write_text(job, encoding="utf-8")
        found = {"first": run(place.folder, [])}
        for name, more in again.items():
            found[name] = run(place.folder, more)
            say(f"{name}: {found[name]}")
    # What is computed in another order has bits of its own, and keeps them.
    like = {"logits in chunks, again": "logits in chunks", "compiled, again": "compiled"}
    first_of_its_kind = {"first", *like.values()}
    equal = {
        name: found[name] == found[like.get(name, "first")] for name in found if name not in first_of_its_kind
    }
    document = {"bench": f"same bits on {device} in {compute}", "machine": machine(), "equal": equal}
    print(
        json.dumps(document, indent=2) if options.json else "\n".join(f"{k}: {v}" for k, v in equal.items())
    )
    return 0 if all(equal.values()) else 1


def run(folder: Path, more: list[str]) -> dict[str, object]:
    """What must be equal of one run.

    Raises: RuntimeError with what it said if it failed.
    """
    command = [sys.executable, "-m", "trimtab", "run", "job.yaml", "--json", *more]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"the run gave exit code {ended.returncode}: {ended.stderr[-3000:]}")
    document = json.loads(ended.stdout)
    return {key: document[key] for key in _SAME}


def parse() -> argparse.Namespace:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--size", choices=SIZES, default="smallest", help="(%(default)s)")
    made.add_argument("--device", default="cuda", help="kind of device (%(default)s)")
    made.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
