"""How fast does one device train a decoder, and in how much memory, against a loop of plain torch?

    python bench/gpu/decoder.py [--size 1.5b] [--device cuda] [--compute bf16] [--pairs 5] [--json]
    python bench/gpu/decoder.py --size smallest --device cpu     # shows that it works, on any machine

Trimtab runs a job as a user would: replicas with one share, once as they are, once with each block compiled, once by a
plan whose logits are made some tokens at a time. The peer is bench/gpu/torch_loop.py, as it is and compiled. Tokens per
second of steady steps, from the rank's journal and from equal timers; MFU over the declared peak of --accelerator, causal
attention. The peer also runs with each kernel of attention that torch has for the device.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import runs
from pairs import Row, measure_in_turn, parser, say, show

PEER = Path(__file__).with_name("torch_loop.py")
DROPPED = 3
"""First steps that do not count: kernels are chosen and compiled, memory is first touched."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A Llama and its batch, for both sides."""

    layers: int
    embed: int
    heads: int
    kv_heads: int
    mlp: int
    vocab: int
    sequence: int
    batch: int
    microbatch: int

    def options(self) -> list[str]:
        """As the peer takes them."""
        return [word for name, value in vars(self).items() for word in (f"--{name}", str(value))]


SIZES = {
    "smallest": Size(
        layers=2, embed=64, heads=4, kv_heads=2, mlp=128, vocab=512, sequence=32, batch=4, microbatch=2
    ),
    "1.5b": Size(
        layers=16, embed=2048, heads=32, kv_heads=8, mlp=8192, vocab=128256, sequence=4096, batch=16, microbatch=2
    ),
    "3.6b": Size(
        layers=28, embed=3072, heads=24, kv_heads=8, mlp=8192, vocab=128256, sequence=4096, batch=16, microbatch=1
    ),
}  # fmt: skip
"""The last two have the widths of Llama 3.2 1B and 3B, with a head of their own."""

_JOB = """
run: bench
model: {{preset: llama-3m, layers: {layers}, embed: {embed}, heads: {heads}, kv_heads: {kv_heads}, mlp: {mlp}, vocab: {vocab}, context: {sequence}}}
data: {{text: text, tokenizer: bytes, sequence: {sequence}}}
train: {{steps: {steps}, batch: {batch}, microbatch: {microbatch}, compute: {compute}, compile: "{compiled}", optimizer: {{adamw: {{lr: 1e-3}}}}}}
orchestration: {{devices: 1, environment: {{set: {{CUDA_VISIBLE_DEVICES: "{visible}"}}}}}}
parallelism: "{formulas}"
fault_tolerance: {{shares: 1, checkpoint: {{every: "off"}}, detection: {{first_step: 1800s, heartbeat: 60s}}}}
"""
IN_CHUNKS = "RECOMPUTE activations WHERE name = 'logits'"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What one run came to."""

    tokens_per_s: float
    peak_bytes: float


class Bench:
    """Measures one size on one device."""

    def __init__(self, place: runs.Workplace, options: argparse.Namespace) -> None:
        self._place, self._options, self._size = place, options, SIZES[options.size]
        self.peaks: dict[str, list[float]] = {}

    def ours(self, name: str, *, compiled: str = "off", formulas: str = "") -> float:
        """Tokens per second of a job.

        Raises: RuntimeError if it fails, or its rank computed on another kind of device.
        """
        options = self._options
        job = _JOB.format(
            **vars(self._size),
            steps=options.steps,
            compute=options.compute,
            compiled=compiled,
            formulas=formulas,
            visible="" if options.device == "cpu" else "0",
        )
        (self._place.folder / "job.yaml").write_text(job, encoding="utf-8")
        run = self._place.run_job("job.yaml")
        (memory,) = runs.events(run, "rank-0-0", "memory")
        if memory["device"] != options.device:
            raise RuntimeError(f"the rank computed on {memory['device']}, and --device is {options.device}")
        steps = runs.events(run, "rank-0-0", "step")
        times_ns = [(step["start_ns"], step["end_ns"]) for step in steps]
        return self._noted(name, times_ns, memory["peak_bytes"])

    def peer(self, name: str, *more: str) -> float:
        """Tokens per second of the loop.

        Raises: RuntimeError with what it said if it failed.
        """
        options, out = self._options, self._place.folder / "peer.json"
        ended = subprocess.run(
            [
                sys.executable, str(PEER), *self._size.options(), "--steps", str(options.steps), "--device",
                options.device, "--compute", options.compute, "--text", "text", "--out", str(out), *more,
            ],
            cwd=self._place.folder,
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if ended.returncode:
            raise RuntimeError(f"{PEER.name} gave exit code {ended.returncode}: {ended.stderr[-3000:]}")
        found = json.loads(out.read_text(encoding="utf-8"))
        return self._noted(name, found["times_ns"], found["peak_bytes"])

    def _noted(self, name: str, times_ns: list[tuple[int, int]], peak_bytes: int) -> float:
        self.peaks.setdefault(name, []).append(float(peak_bytes))
        steady = times_ns[DROPPED:]
        tokens = self._size.batch * self._size.sequence * len(steady)
        return tokens / ((steady[-1][1] - steady[0][0]) / 1e9)


def main() -> int:
    """Measure and print; returns the exit code."""
    options = parse()
    with runs.workplace() as place:
        bench = Bench(place, options)
        measures: dict[str, Callable[[], float]] = {
            "replicas": partial(bench.ours, "replicas"),
            "chunks": partial(bench.ours, "chunks", formulas=IN_CHUNKS),
            "torch": partial(bench.peer, "torch"),
        }
        if options.compile:
            measures["compiled"] = partial(bench.ours, "compiled", compiled="blocks")
            measures["torch compiled"] = partial(bench.peer, "torch compiled", "--compile")
        found = measure_in_turn(measures, rounds=options.pairs)
        attention = kernels(bench)
    pairs = {"replicas": "torch", "chunks": "torch"} | (
        {"compiled": "torch compiled"} if options.compile else {}
    )
    title = f"{options.size} on {options.device} in {options.compute}"
    rows = [
        Row(name=f"{ours} / {peer}", unit="tokens/s", ours=found[ours], peer=found[peer])
        for ours, peer in pairs.items()
    ] + [
        Row(name=f"{ours} / {peer}", unit="peak bytes", ours=bench.peaks[ours], peer=bench.peaks[peer])
        for ours, peer in pairs.items()
    ]
    extra = {"mfu": utilisation(options, found), "attention_tokens_per_s": attention}
    show(f"one device, {title}", rows, is_json=options.json, extra=extra)
    return 0


def kernels(bench: Bench) -> Mapping[str, float | None]:
    """Tokens per second of the loop by kernel of attention; None where torch has none for the device."""
    found: dict[str, float | None] = {}
    for name in ("flash", "efficient", "math"):
        try:
            found[name] = bench.peer(f"attention {name}", "--attention", name)
        except RuntimeError as error:
            say(f"attention {name}: {str(error).strip().splitlines()[-1]}")
            found[name] = None
    return found


def utilisation(options: argparse.Namespace, found: Mapping[str, list[float]]) -> Mapping[str, float] | None:
    """Model FLOPs over the declared peak; None without a device whose peak is known."""
    from trimtab.catalog import accelerator, network
    from trimtab.terms import ComputeType

    if options.accelerator is None:
        return None
    peak = accelerator(options.accelerator).peak_flops_per_s(ComputeType(options.compute))
    if peak is None:
        return None
    size = SIZES[options.size]
    names = ("layers", "embed", "heads", "kv_heads", "mlp", "vocab")
    model = network("llama-3m", **{name: getattr(size, name) for name in names}, context=size.sequence)
    flops = model.flops_per_token(size.sequence, causal=True)
    return {name: statistics.median(each) * flops / peak for name, each in found.items()}


def parse() -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__, rounds=5)
    made.add_argument("--size", choices=SIZES, default="1.5b", help="(%(default)s)")
    made.add_argument(
        "--device", default="cuda", help="kind of device; never another in its place (%(default)s)"
    )
    made.add_argument("--compute", choices=("fp32", "bf16"), help="(bf16; on a CPU fp32)")
    made.add_argument("--accelerator", help="name in the catalog, for MFU: H100-SXM-80GB")
    made.add_argument("--steps", type=int, default=13, help="of each run (%(default)s)")
    made.add_argument("--compile", action=argparse.BooleanOptionalAction, help="(on; off on a CPU)")
    options = made.parse_args()
    is_cpu = options.device == "cpu"
    options.compute = options.compute or ("fp32" if is_cpu else "bf16")
    options.compile = not is_cpu if options.compile is None else options.compile
    if options.quick:
        options.size, options.pairs, options.steps = "smallest", 1, DROPPED + 2
    return options


if __name__ == "__main__":
    sys.exit(main())
