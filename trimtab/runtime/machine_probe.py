"""Measures what a machine can do with all its ranks at work: products, memory, collectives, pairs.

Ranks that share their cores come apart while they compute, so a collective waits longer between computing than after a
barrier: that is the latency that training meets, and the one that is reported.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trimtab.runtime.linear import linear
from trimtab.runtime.lowering import Wires

PRODUCTS = ((256, 256, 256), (512, 512, 2048), (1024, 512, 512), (1024, 1024, 1024), (2048, 1024, 4096))
"""Rows, inner size and columns of the products that are tried; the best rate counts."""

SIZES = tuple(4**power * 1024 for power in range(8))
"""Bytes of the all-reduces of the table: 1 KiB to 16 MiB."""

_COPIED_ELEMENTS = 2**24
_TIMES, _SMALL_TIMES, _MEETINGS = 8, 40, 200


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProbe:
    """What one rank measured.

    Args:
        flops_per_s: Of the best product.
        memory_bytes_per_s: Read and written by a large copy.
        start_s: Of a small all-reduce between computing.
        all_reduce_s: Seconds by bytes, after a barrier, least of several.
        pairs: By the other rank, for those above this one: latency and bytes a second.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    start_s: float
    all_reduce_s: dict[int, float]
    pairs: dict[int, tuple[float, float]]


def probe_rank(wires: Wires, compute: str) -> RankProbe:
    """One rank's part; every rank of a crew runs it at once.

    Args:
        wires: Of the crew; its world is the default process group.
        compute: Type of the products: fp32 or bf16.
    """
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[compute]
    together = dist.is_initialized() and dist.get_world_size() > 1
    rates = []
    for rows, depth, columns in PRODUCTS:
        x, weight = torch.randn(rows, depth, dtype=dtype), torch.randn(columns, depth, dtype=dtype)
        seconds = _fastest_s(lambda x=x, weight=weight: linear(x, weight), together)  # type: ignore[misc]  # bound now
        rates.append(2 * rows * depth * columns / seconds)
    source = torch.empty(_COPIED_ELEMENTS)
    target = torch.empty_like(source)
    copy_s = _fastest_s(lambda: target.copy_(source), together)
    if not together:
        return RankProbe(
            flops_per_s=max(rates),
            memory_bytes_per_s=2 * source.nbytes / copy_s,
            start_s=0.0,
            all_reduce_s={},
            pairs={},
        )
    x, weight = torch.randn(1024, 512), torch.randn(512, 512)
    small = torch.zeros(16)
    table = {}
    for size in SIZES:
        vector = torch.zeros(size // 4)
        times = _SMALL_TIMES if size < 2**18 else _TIMES
        table[size] = _fastest_s(lambda vector=vector: dist.all_reduce(vector), True, times=times)  # type: ignore[misc]
    return RankProbe(
        flops_per_s=max(rates),
        memory_bytes_per_s=2 * source.nbytes / copy_s,
        start_s=_met_s(lambda: linear(x, weight), lambda: dist.all_reduce(small)),
        all_reduce_s=table,
        pairs=_pairs(),
    )


def _pairs() -> dict[int, tuple[float, float]]:
    """Every pair in turn, the others waiting at a barrier."""
    rank, world = dist.get_rank(), dist.get_world_size()
    found = {}
    for first in range(world):
        for second in range(first + 1, world):
            dist.barrier()
            if rank in (first, second):
                empty_s = _there_and_back_s(torch.zeros(1), first, second, times=_SMALL_TIMES)
                large = torch.zeros(2**20)
                large_s = _there_and_back_s(large, first, second, times=_TIMES)
                if rank == first:
                    found[second] = (empty_s / 2, large.nbytes / max((large_s - empty_s) / 2, 1e-9))
    dist.barrier()
    return found


def _there_and_back_s(tensor: torch.Tensor, first: int, second: int, *, times: int) -> float:
    rank = dist.get_rank()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        if rank == first:
            dist.send(tensor, second)
            dist.recv(tensor, second)
        else:
            dist.recv(tensor, first)
            dist.send(tensor, first)
        taken.append(time.perf_counter() - start)
    return min(taken)


def _fastest_s(act: Callable[[], object], together: bool, *, times: int = _TIMES) -> float:
    """Seconds of the fastest time, after one that warms up."""
    act()
    taken = []
    for _ in range(times):
        if together:
            dist.barrier()
        start = time.perf_counter()
        act()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _met_s(compute: Callable[[], object], meet: Callable[[], object]) -> float:
    """Mean seconds of a collective after some computing."""
    taken = 0.0
    for _ in range(_MEETINGS):
        compute()
        start = time.perf_counter()
        meet()
        taken += time.perf_counter() - start
    return taken / _MEETINGS
