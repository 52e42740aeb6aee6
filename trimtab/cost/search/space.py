"""All layouts of a network on some devices that the strategy language can say, as arrays to be priced."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from trimtab.catalog import Activation, Network
from trimtab.cost.closed_form import Cases
from trimtab.cost.search.fabrics import Fabric, Pool, SpaceError
from trimtab.plan.pipelines import StageSchedule, refusal_of, stages_per_rank_of

CHUNK = 65536
"""Layouts that are priced at once: as many as fit into a processor's caches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is to be trained, and on what.

    Args:
        devices: Numbers of devices to look at.
        compute: Type of matrix products: fp32 or bf16.
        shares: Parts of the batch that are computed and summed in a fixed order; None for the backend's own order.
        num_states: fp32 values that the optimizer keeps of a parameter.
        pools: Two, where devices are of two kinds and stages may hold layers by how fast theirs are; ``fabric`` has the
            slower figure of each.
        clips: Whether the gradient's norm is needed.
    """

    network: Network
    sequence: int
    batch: int
    fabric: Fabric
    devices: tuple[int, ...]
    compute: str
    shares: int | None
    num_states: int = 2
    pools: tuple[Pool, ...] = ()
    clips: bool = True

    def __post_init__(self) -> None:
        """Refuse more devices than there are."""
        most = max(self.devices)
        if most > self.fabric.num_devices or min(self.devices) < 1:
            raise SpaceError(
                f"devices {', '.join(map(str, self.devices))}: the cluster has {self.fabric.num_devices}; "
                "ask for at least 1 and at most so many"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One layout.

    Args:
        tensor, pipeline, context, expert: Degrees; experts are spread over a part of data parallelism.
        schedule, pieces: Of the pipeline, and the stages of one rank; 1f1b and 1 without.
        microbatch: Samples.
        store: 0 nothing in pieces, 1 states, 2 gradients too, 3 parameters too.
        recompute_quarters: Of four layers so many are computed again.
        recompute: The way of each layer, by ``words.WAYS``, in place of quarters; empty: quarters hold.
        reduce: How gradients are summed, where not by default: ``USING tree BUCKET 25MB``.
        sequence_parallel: Whether norms and residuals are split over the tensor axis.
        first_layers: That the stages on the first of two pools hold together; 0: stages are as even as they can be.
        head_layers: Where they are not even, of the rank of the pipeline that has the head too.
    """

    devices: int
    tensor: int = 1
    pipeline: int = 1
    schedule: StageSchedule = StageSchedule.ONE_F_ONE_B
    pieces: int = 1
    context: int = 1
    expert: int = 1
    microbatch: int = 1
    store: int = 0
    recompute_quarters: int = 0
    sequence_parallel: bool = False
    first_layers: int = 0
    head_layers: int = 0
    recompute: tuple[int, ...] = ()
    reduce: str = ""

    @property
    def data(self) -> int:
        """Replicas."""
        return self.devices // (self.tensor * self.pipeline * self.context)


_SCHEDULES = tuple(StageSchedule)

FILL: Mapping[StageSchedule, float] = {
    StageSchedule.GPIPE: 1.0,
    StageSchedule.ONE_F_ONE_B: 1.0,
    StageSchedule.INTERLEAVED_1F1B: 1.0,
    StageSchedule.LOOPED_BFS: 1.0,
    StageSchedule.INTERLEAVED_ZERO_BUBBLE: 0.35,
    StageSchedule.ZBV: 1 / 3,
    StageSchedule.DUALPIPEV: 0.05,
}
"""Time to fill and to drain over that of one-forward-one-backward with as many stages a rank: what simulations of 4 and 8
ranks with 16 to 64 microbatches take, where a backward pass takes twice a forward pass, half of it for weights. A
filter: the best are judged by their actions, one by one."""

_IS_V = (StageSchedule.ZBV, StageSchedule.DUALPIPEV)

_KEEPS_ALL = (StageSchedule.GPIPE, StageSchedule.LOOPED_BFS)


def layouts(question: Question) -> Iterator[dict[str, np.ndarray]]:
    """All of them in chunks of columns by the fields of Layout; ``schedule`` by its place in StageSchedule."""
    waiting: list[dict[str, np.ndarray]] = []
    count = 0
    for block in _blocks(question):
        waiting.append(block)
        count += len(block["devices"])
        if count >= CHUNK:
            yield _joined(waiting)
            waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def cases_of_layouts(question: Question, columns: Mapping[str, np.ndarray]) -> Cases:
    """What the closed forms need of layouts."""
    network, fabric = question.network, question.fabric
    schedule = columns["schedule"]
    tensor, data = (
        columns["tensor"],
        columns["devices"] / (columns["tensor"] * columns["pipeline"] * columns["context"]),
    )
    is_gated = network.activation is Activation.SWIGLU
    flushes = np.ones(()) if question.shares is None else question.shares / data
    return Cases.of(
        {
            "layers": network.layers,
            "embed": network.embed,
            "heads": network.heads,
            "kv_heads": network.kv_heads,
            "head_size": network.head_size,
            "mlp": network.mlp,
            "mlp_inputs": 2 if is_gated else 1,
            "vocab": np.ceil(network.vocab / tensor) * tensor,
            "is_tied": network.tied,
            "experts": network.experts,
            "top_k": network.top_k,
            "shared_mlp": 0,
            "sequence": question.sequence,
            "batch": question.batch,
            "microbatch": columns["microbatch"],
            "devices": columns["devices"],
            "tensor": tensor,
            "pipeline": columns["pipeline"],
            "virtual": columns["pieces"],
            "fill": np.asarray([FILL[found] for found in _SCHEDULES])[schedule],
            "keeps_all": np.asarray([found in _KEEPS_ALL for found in _SCHEDULES])[schedule],
            "ends_together": np.asarray([found in _IS_V for found in _SCHEDULES])[schedule],
            "flushes": flushes,
            "context": columns["context"],
            "expert": columns["expert"],
            "whole_experts": 0,
            "store": columns["store"],
            "recompute": columns["recompute_quarters"] / 4,
            "recompute_scores": 0,
            "sequence_parallel": columns["sequence_parallel"],
            "is_asynchronous": 0,
            "product_flops_per_s": fabric.product_flops_per_s,
            "attention_flops_per_s": fabric.attention_flops_per_s,
            "memory_bytes_per_s": fabric.memory_bytes_per_s,
            "multiprocessors": fabric.multiprocessors,
            "island_devices": fabric.island_devices,
            "island_bytes_per_s": fabric.island_bytes_per_s,
            "site_bytes_per_s": fabric.site_bytes_per_s,
            "is_fused_attention": 1,
            "is_fine_scaled": 0,
            "weight_bytes": 4,
            "gradient_bytes": 4,
            "state_bytes": 4 * question.num_states,
            "exchanged_bytes": 4,
            "keeps_gathered": 0,
        }
    )


def layout_at(columns: Mapping[str, np.ndarray], index: int) -> Layout:
    """One of them."""
    values: dict[str, Any] = {name: int(column[index]) for name, column in columns.items()}
    values["schedule"] = _SCHEDULES[values["schedule"]]
    values["sequence_parallel"] = bool(values["sequence_parallel"])
    return Layout(**values)


def priced_cases(question: Question, layout: Layout) -> Cases:
    """What the closed forms need of one layout: a case."""
    return cases_of_layouts(question, columns_of(layout))


def columns_of(layout: Layout) -> dict[str, np.ndarray]:
    """One layout as columns of length 1; ways of single layers and of sums stand in none."""
    return {
        field.name: np.asarray(
            [
                _SCHEDULES.index(layout.schedule)
                if field.name == "schedule"
                else int(getattr(layout, field.name))
            ]
        )
        for field in fields(Layout)
        if field.name not in ("recompute", "reduce")
    }


def divisors(number: int) -> list[int]:
    """In order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [part for part in range(1, int(number**0.5) + 1) if number % part == 0]
    return sorted({*small, *(number // part for part in small)})


def _blocks(question: Question) -> Iterator[dict[str, np.ndarray]]:
    """Layouts with the same degrees, everything else varied."""
    network, batch = question.network, question.batch
    for devices in question.devices:
        for tensor in _tensor_degrees(network, devices):
            for pipeline in divisors(devices // tensor):
                if pipeline > network.layers:
                    break
                for context in _context_degrees(question, devices // tensor // pipeline):
                    data = devices // (tensor * pipeline * context)
                    parts = question.shares or data
                    if batch % parts or parts % data:
                        continue
                    of_part = batch // parts
                    for expert in _expert_degrees(network, data):
                        for microbatch in divisors(of_part):
                            runs = _pipelines(network, pipeline, of_part // microbatch)
                            yield _block(
                                {
                                    "devices": [devices],
                                    "tensor": [tensor],
                                    "pipeline": [pipeline],
                                    "context": [context],
                                    "expert": [expert],
                                    "microbatch": [microbatch],
                                    "store": [0, 1, 2, 3] if data * context > 1 else [0],
                                    "recompute_quarters": [0, 1, 2, 3, 4],
                                    "sequence_parallel": [0, 1] if tensor > 1 else [0],
                                },
                                runs,
                            )


def _tensor_degrees(network: Network, devices: int) -> list[int]:
    """Those that cut heads, the heads that they share, and the MLP evenly."""
    return [
        degree
        for degree in divisors(devices)
        if network.kv_heads % degree == 0 and network.heads % degree == 0 and network.mlp % degree == 0
    ]


def _context_degrees(question: Question, devices: int) -> list[int]:
    """Pieces of a sequence: of each so many tokens that a tile of a product is full."""
    return [
        degree
        for degree in divisors(devices)
        if question.sequence % degree == 0 and (degree == 1 or question.sequence // degree >= _SHORTEST_PIECE)
    ]


_SHORTEST_PIECE = 256
"""Tokens."""


def _expert_degrees(network: Network, data: int) -> list[int]:
    if not network.experts:
        return [1]
    return [degree for degree in divisors(data) if network.experts % degree == 0]


def _pipelines(network: Network, ranks: int, microbatches: int) -> list[tuple[int, int]]:
    """Schedules by place, and stages a rank, that can run so many microbatches."""
    if ranks == 1:
        return [(_SCHEDULES.index(StageSchedule.ONE_F_ONE_B), 1)]
    found = []
    for place, schedule in enumerate(_SCHEDULES):
        fixed = stages_per_rank_of(schedule)
        for count in [fixed] if fixed else range(2, network.layers // ranks + 1):
            stages = count * ranks
            # Stages of one rank are even, or embedding and head stand for a layer each.
            is_even = network.layers % stages == 0 or (network.layers + 2) % stages == 0
            if stages > network.layers or (count > 1 and not is_even):
                continue
            if refusal_of(schedule, ranks=ranks, stages_per_rank=count, microbatches=microbatches) is None:
                found.append((place, count))
    return found


def _block(axes: Mapping[str, Sequence[int]], pipelines: Sequence[tuple[int, int]]) -> dict[str, np.ndarray]:
    sides = [*axes.values(), range(len(pipelines))]
    grid = np.meshgrid(*(np.asarray(side, dtype=np.int64) for side in sides), indexing="ij")
    found = {name: column.ravel() for name, column in zip(axes, grid, strict=False)}
    ways = np.asarray(pipelines, dtype=np.int64).reshape(-1, 2)[grid[-1].ravel()]
    return {**found, "schedule": ways[:, 0], "pieces": ways[:, 1]}


def _joined(blocks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
