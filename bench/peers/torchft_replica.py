"""Training that survives by torchft: a replica of its own in each process, joined by a lighthouse, in plain torch.

Gradients are averaged by torchft's wrapper of DistributedDataParallel, or by hand through its manager. The batch of a
lost replica is not made up: torchft goes on with a smaller one.
"""

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import ddp
import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel

HEARTBEAT_MS = 1_000
"""A fifth of torchft's own default, to its advantage: a killed replica is missed after it."""
COLLECTIVE_S = 8.0
"""A survivor that no broken connection tells of the loss waits for it."""


def main() -> None:
    """Serve the lighthouse, or train one replica and write down every step that it commits."""
    options = parse()
    if options.serve:
        serve()
    else:
        train(options)


def serve() -> None:
    """Print the lighthouse's address, and stay until standard input is closed."""
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=60_000, heartbeat_timeout_ms=HEARTBEAT_MS
    )
    print(lighthouse.address(), flush=True)
    sys.stdin.read()
    lighthouse.shutdown()


def train(options: argparse.Namespace) -> None:
    """Train until somebody ends it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = ddp.build(argparse.Namespace(**vars(options), model="decoder"))
    optimizer = ddp.build_optimizer(network)

    def load(state: dict[str, Any]) -> None:
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=COLLECTIVE_S)),
        load_state_dict=load,
        state_dict=lambda: {"model": network.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        timeout=timedelta(seconds=COLLECTIVE_S),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        replica_id=f"replica-{options.replica}",
        hostname="127.0.0.1",
    )
    model = DistributedDataParallel(manager, network) if options.wrapper == "ddp" else network
    data = ddp.read(Path(options.text))
    path = Path(options.folder) / f"commits-{options.replica}.jsonl"
    with open(path, "a", encoding="utf-8", buffering=1) as commits:
        while True:
            step = manager.current_step()
            chosen = np.random.default_rng(step).integers(0, len(data) - options.sequence - 1, options.batch)[
                options.replica :: options.replicas
            ]
            tokens, targets = ddp.cut(data, chosen, options.sequence)
            manager.start_quorum()
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
            if options.wrapper == "hand":
                waiting = [manager.allreduce(p.grad) for p in network.parameters() if p.grad is not None]
                for work in waiting:
                    work.wait()
            torch.nn.utils.clip_grad_norm_(network.parameters(), ddp.CLIP)
            if manager.should_commit():
                optimizer.step()
                record = {"step": step, "t_ns": time.monotonic_ns(), "replicas": manager.num_participants()}
                commits.write(json.dumps(record) + "\n")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="be the lighthouse")
    for name in ("layers", "embed", "heads", "mlp", "context", "batch", "sequence", "replica", "replicas"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--wrapper", choices=("ddp", "hand"), default="ddp")
    parser.add_argument("--lighthouse", default=os.environ.get("TORCHFT_LIGHTHOUSE", ""))
    parser.add_argument("--text", default="text")
    parser.add_argument("--folder", default=".")
    return parser.parse_args()


if __name__ == "__main__":
    main()
