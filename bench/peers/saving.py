"""A training loop that saves its state by torch's own means, and times what that costs."""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

State = dict[str, Tensor]

NUM_TENSORS = 48
_WIDTH = 320


class Way(Protocol):
    """One way to save."""

    def save(self, number: int, state: State) -> None:
        """Save, or begin to: training goes on when this returns."""

    def wait(self) -> None:
        """Return when the save is done."""


class Loop:
    """Small training steps, each of which changes a part of a state of fixed size.

    Args:
        megabytes: Of the state.
    """

    def __init__(self, megabytes: int) -> None:
        elements = megabytes * 10**6 // 4 // NUM_TENSORS
        self.state = {f"tensor-{number:02}": torch.randn(elements) for number in range(NUM_TENSORS)}
        self._tensors = list(self.state.values())
        self._weights = torch.randn(_WIDTH, _WIDTH, requires_grad=True)
        self._inputs = torch.randn(128, _WIDTH)
        self._count = 0

    def run(self, steps: int) -> float:
        """Seconds that ``steps`` steps took."""
        started_s = time.perf_counter()
        for _ in range(steps):
            self._step()
        return time.perf_counter() - started_s

    def _step(self) -> None:
        hidden = self._inputs
        for _ in range(4):
            hidden = torch.tanh(hidden @ self._weights)
        hidden.square().mean().backward()
        self._weights.grad = None
        self._tensors[self._count % NUM_TENSORS].add_(1e-3)
        self._count += 1


class TorchSave:
    """torch.save beside the last one, then a rename."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, number: int, state: State) -> None:
        """See Way."""
        unfinished = self._folder / "unfinished.pt"
        with open(unfinished, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, self._folder / "checkpoint.pt")

    def wait(self) -> None:
        """See Way."""


class Dcp:
    """torch.distributed.checkpoint, a new folder each time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, number: int, state: State) -> None:
        """See Way."""
        dcp.save(state, checkpoint_id=self._folder / str(number))

    def wait(self) -> None:
        """See Way."""


class DcpAsync:
    """The same in the background."""

    def __init__(self, folder: Path, kind: AsyncCheckpointerType) -> None:
        self._folder, self._kind = folder, kind
        self._future: Future[object] | None = None

    def save(self, number: int, state: State) -> None:
        """See Way."""
        response = dcp.async_save(
            state, checkpoint_id=self._folder / str(number), async_checkpointer_type=self._kind
        )
        assert isinstance(response, Future)
        self._future = response

    def wait(self) -> None:
        """See Way."""
        assert self._future is not None
        self._future.result()


WAYS: dict[str, Callable[[Path], Way]] = {
    "torch.save": TorchSave,
    "dcp.save": Dcp,
    "dcp.async_save thread": lambda folder: DcpAsync(folder, AsyncCheckpointerType.THREAD),
    "dcp.async_save process": lambda folder: DcpAsync(folder, AsyncCheckpointerType.PROCESS),
}


def measure(way: Way, loop: Loop, options: argparse.Namespace) -> dict[str, float]:
    """What a save costs, ms, medians: extra time of a stretch of steps, time in the call, time until it is done.

    A stretch with a save is compared with the mean of the two without that stand before and after it.
    """
    loop.run(options.steps)
    way.save(0, loop.state)  # the first one builds buffers and processes
    way.wait()
    plain_s, extra_s, call_s, durable_s = [loop.run(options.steps)], [], [], []
    for number in range(1, options.saves + 1):
        started_s = time.perf_counter()
        way.save(number, loop.state)
        call_s.append(time.perf_counter() - started_s)
        loop.run(options.steps)
        with_s = time.perf_counter() - started_s
        way.wait()
        durable_s.append(time.perf_counter() - started_s)
        plain_s.append(loop.run(options.steps))
        extra_s.append(with_s - (plain_s[-2] + plain_s[-1]) / 2)
    return {
        "extra_ms": statistics.median(extra_s) * 1e3,
        "call_ms": statistics.median(call_s) * 1e3,
        "durable_ms": statistics.median(durable_s) * 1e3,
        "step_ms": statistics.median(plain_s) / options.steps * 1e3,
    }


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    for name in ("megabytes", "saves", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def main() -> None:
    """Measure one way and print."""
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    print(json.dumps(measure(WAYS[options.way](options.folder), Loop(options.megabytes), options)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
