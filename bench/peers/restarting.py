"""Training that survives by restart: under torchrun, with a checkpoint after every step, in plain torch.

The process group's store gets a prefix of its own at every restart. Without it, gloo finds the addresses of the
processes that are gone in the store that torchrun keeps, and restarts fail (torch 2.13).
"""

import argparse
import json
import os
import time
from pathlib import Path

import ddp
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train on from the newest checkpoint, and write down every committed step."""
    options = parse()
    torch.set_num_threads(1)
    rank, ranks, attempt = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
    folder = Path(options.folder)
    (folder / f"rank-{rank}-{attempt}.pid").write_text(str(os.getpid()), encoding="utf-8")
    join(attempt, rank, ranks)
    torch.manual_seed(0)
    network = ddp.build(argparse.Namespace(**vars(options), model="decoder"))
    optimizer = ddp.build_optimizer(network)
    first = restore(folder / "checkpoint.pt", network, optimizer)
    model = DistributedDataParallel(network, gradient_as_bucket_view=True, static_graph=True)
    data = ddp.read(Path(options.text))
    with open(folder / f"commits-{attempt}.jsonl", "a", encoding="utf-8", buffering=1) as commits:
        for step in range(first, options.steps):
            chosen = np.random.default_rng(step)
            starts = chosen.integers(0, len(data) - options.sequence - 1, options.batch)[rank::ranks]
            tokens, targets = ddp.cut(data, starts, options.sequence)
            ddp.train_step(model, optimizer, (tokens,), (targets,))
            if rank == 0:
                commits.write(json.dumps({"step": step, "t_ns": time.monotonic_ns()}) + "\n")
                save(folder / "checkpoint.pt", network, optimizer, step)


def join(attempt: int, rank: int, ranks: int) -> None:
    """Form the process group of this attempt."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    dist.init_process_group("gloo", store=dist.PrefixStore(f"a{attempt}", store), rank=rank, world_size=ranks)


def save(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Replace the checkpoint in one act."""
    unfinished = path.with_suffix(".tmp")
    torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, unfinished)
    os.replace(unfinished, path)


def restore(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint if there is one; the step to go on with."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    network.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"]) + 1


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "embed", "heads", "mlp", "context", "batch", "sequence", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--folder", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
