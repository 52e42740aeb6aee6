"""Data-parallel training of a small GPT, written by hand in plain torch: one process a rank, under torchrun."""

import argparse
import contextlib
import json
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from gpt import Gpt
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LR, WARMUP, CLIP = 1e-3, 2, 1.0


def main() -> None:
    """Train, and write when each step began and ended."""
    options = parse()
    torch.set_num_threads(1)
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    torch.manual_seed(0)
    model: nn.Module = build(options)
    optimizer = build_optimizer(model)
    if ranks > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(
            model, gradient_as_bucket_view=True, static_graph=options.accumulate == 1
        )
    data = read(Path(options.text))
    positions = np.random.default_rng(0)
    times_ns = []
    for step in range(options.steps):
        start_ns = time.monotonic_ns()
        starts = positions.integers(0, len(data) - options.sequence - 1, options.batch)[rank::ranks]
        tokens, targets = cut(data, starts, options.sequence)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, options.steps)
        train_step(model, optimizer, tokens.chunk(options.accumulate), targets.chunk(options.accumulate))
        times_ns.append((start_ns, time.monotonic_ns()))
    if rank == 0:
        Path(options.out).write_text(json.dumps({"times_ns": times_ns}), encoding="utf-8")
    if ranks > 1:
        # Torch 2.13: the last reference to a gloo group, held by DDP's reducer, is dropped under the GIL and joins a
        # thread that waits for the GIL. Nothing is left to do, so no teardown.
        dist.barrier()
        os._exit(0)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: tuple[Tensor, ...],
    targets: tuple[Tensor, ...],
) -> None:
    """One optimizer step over the microbatches of this rank; gradients are reduced with the last one."""
    for number, (inputs, wanted) in enumerate(zip(tokens, targets, strict=True)):
        is_last = number == len(tokens) - 1
        waits = isinstance(model, DistributedDataParallel) and not is_last
        with model.no_sync() if waits else contextlib.nullcontext():
            logits = model(inputs)
            loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten()) / len(tokens)
            loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def build(options: argparse.Namespace) -> nn.Module:
    """The network: Trimtab's module, or one of torch's own layers."""
    if options.model == "plain":
        return Gpt(
            layers=options.layers,
            embed=options.embed,
            heads=options.heads,
            mlp=options.mlp,
            context=options.context,
        )
    from trimtab.catalog import network
    from trimtab.runtime.decoder import Decoder
    from trimtab.runtime.random_keys import KeyedRandom

    names = ("layers", "embed", "heads", "mlp", "context")
    model = Decoder(network("gpt-3m", **{name: getattr(options, name) for name in names}), KeyedRandom())
    model.initialize(0)
    return model


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Fused AdamW; matrices decay."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), fused=True)


def rate(step: int, steps: int) -> float:
    """A linear warmup, then half a cosine down to a tenth."""
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    done = (step - WARMUP) / (steps - WARMUP)
    return LR * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def read(folder: Path) -> np.ndarray:
    """All text of a folder, as bytes."""
    return np.frombuffer(b"".join(path.read_bytes() for path in sorted(folder.iterdir())), np.uint8)


def cut(data: np.ndarray, starts: np.ndarray, sequence: int) -> tuple[Tensor, Tensor]:
    """Samples that begin at ``starts``, and their successors."""
    rows = torch.from_numpy(
        np.stack([data[start : start + sequence + 1] for start in starts]).astype(np.int64)
    )
    return rows[:, :-1], rows[:, 1:].contiguous()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "embed", "heads", "mlp", "context", "batch", "sequence", "steps", "accumulate"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--model", choices=("decoder", "plain"), required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--out", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
