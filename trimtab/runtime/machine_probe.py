"""Measures what a machine can do with all its ranks at work: products, attention, memory, launches, collectives, pairs.

Ranks that share their cores come apart while they compute, so a collective waits longer between computing than after a
barrier: that is the latency that training meets, and the one that is reported.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.nn import functional

from trimtab.runtime.linear import linear
from trimtab.runtime.lowering import Wires

PRODUCTS = ((256, 256, 256), (512, 512, 2048), (1024, 512, 512), (1024, 1024, 1024), (2048, 1024, 4096))
"""Rows, inner size and columns of the products that are tried; the best rate counts."""

SIZES = tuple(4**power * 1024 for power in range(8))
"""Bytes of the whole vector of the collectives of the table: 1 KiB to 16 MiB."""

_HEADS, _QUERIES, _HEAD_SIZE = 4, 1024, 64
"""Of the attention that is timed: long enough that its products count, as many heads as keep a core busy."""

_LAUNCHES = 1000

_COPIED_ELEMENTS = 2**24
_TIMES, _SMALL_TIMES, _MEETINGS = 8, 40, 200


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProbe:
    """What one rank measured.

    Args:
        flops_per_s: Of the best product.
        memory_bytes_per_s: Read and written by a large copy.
        attention_flops_per_s: Of causal attention forwards, FLOPs of the triangle only.
        kernel_s: Of an operator on next to nothing, least of several.
        start_s: Of a small all-reduce between computing.
        collectives: Seconds by name, ranks of a group, and bytes of the whole vector, after a barrier, least of several;
            all groups of one size at once.
        pairs: By the other rank, for those above this one: latency and bytes a second.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    attention_flops_per_s: float
    kernel_s: float
    start_s: float
    collectives: dict[tuple[str, int, int], float]
    pairs: dict[int, tuple[float, float]]

    @property
    def all_reduce_s(self) -> dict[int, float]:
        """Of all ranks, by bytes."""
        most = max((ranks for _, ranks, _ in self.collectives), default=0)
        return {
            size: seconds
            for (name, ranks, size), seconds in self.collectives.items()
            if name == "all_reduce" and ranks == most
        }


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
    alone = RankProbe(
        flops_per_s=max(rates),
        memory_bytes_per_s=2 * source.nbytes / copy_s,
        attention_flops_per_s=_attention_flops_per_s(dtype, together),
        kernel_s=_kernel_s(),
        start_s=0.0,
        collectives={},
        pairs={},
    )
    if not together:
        return alone
    x, weight = torch.randn(1024, 512), torch.randn(512, 512)
    small = torch.zeros(16)
    return replace(
        alone,
        start_s=_met_s(lambda: linear(x, weight), lambda: dist.all_reduce(small)),
        collectives=_collectives(),
        pairs=_pairs(),
    )


def _attention_flops_per_s(dtype: torch.dtype, together: bool) -> float:
    query, key, value = (
        torch.randn(1, _HEADS, _QUERIES, _HEAD_SIZE, dtype=dtype, requires_grad=False) for _ in range(3)
    )
    seconds = _fastest_s(
        lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True), together
    )
    # Two products of queries, keys and head size, a multiplication and an addition each, over half of the square.
    return 2 * 2 * _HEADS * _QUERIES * _QUERIES / 2 * _HEAD_SIZE / seconds


def _kernel_s() -> float:
    small = torch.zeros(16)
    taken = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        for _ in range(_LAUNCHES):
            small.add_(1.0)
        taken.append((time.perf_counter() - start) / _LAUNCHES)
    return min(taken)


def _collectives() -> dict[tuple[str, int, int], float]:
    """Each kind in groups of each power of two and of all ranks, neighbours together, all groups at once."""
    rank, world = dist.get_rank(), dist.get_world_size()
    found = {}
    sizes = sorted({*(1 << power for power in range(1, world.bit_length())), world})
    for count in sizes:
        if world % count:
            continue
        own = None
        for first in range(0, world, count):
            group = dist.new_group(list(range(first, first + count)))
            if first <= rank < first + count:
                own = group
        for size in SIZES:
            times = _SMALL_TIMES if size < 2**18 else _TIMES
            for name, act in _meetings(size, count, own):
                found[name, count, size] = _fastest_s(act, True, times=times)
    return found


def _meetings(
    size: int, count: int, group: dist.ProcessGroup | None
) -> Iterator[tuple[str, Callable[[], object]]]:
    vector, piece = torch.zeros(size // 4), torch.zeros(size // 4 // count)
    whole = torch.zeros(piece.numel() * count)
    yield "all_reduce", lambda: dist.all_reduce(vector, group=group)
    yield "all_gather", lambda: dist.all_gather_single(whole, piece, group=group)
    yield "reduce_scatter", lambda: dist.reduce_scatter_single(piece, whole, group=group)
    yield "all_to_all", lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=group)


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
