"""What the language can say of one layer's activations: which are computed again, what that keeps, what it costs.

Bytes and operators are those of the compiled plan of one layer; the closed forms say what a layer keeps and takes that
is computed again not at all or as a whole, and compiled figures where the ways between lie.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from trimtab.catalog import Cluster, Network
from trimtab.cost.block_bytes import block_bytes, value_bytes
from trimtab.cost.communication import collective_time
from trimtab.cost.counts import Counts, counts_of
from trimtab.cost.search.plans import plan_of
from trimtab.cost.search.space import Layout, Question
from trimtab.cost.search.words import ALL, WAYS
from trimtab.cost.stage_times import compute_s, runs_beside
from trimtab.plan.physical import Plan
from trimtab.plan.program import Block, OperatorKind, Phase
from trimtab.spec import StrategyError


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A way between nothing and all.

    Args:
        way: Its number.
        kept: Bytes above those of a layer all of which is computed again, over those of one that keeps everything.
        compute: Time of computing again, over that of the whole layer without a window.
        wait: Time of its collectives, likewise.
    """

    way: int
    kept: float
    compute: float
    wait: float


def shares_of_ways(
    question: Question, layout: Layout, cluster: Cluster, window: int | None
) -> tuple[Share, ...]:
    """The ways that a layer can be compiled in, under one window or none; nothing and all are among them.

    Args:
        question: For its network.
        layout: For its degrees; of what microbatch has no part in shares.
        cluster: Whose devices and links.
        window: Of the layer's attention.

    Returns: Nothing where one of the two extremes cannot be compiled.
    """
    found = {
        way: figures
        for way in range(len(WAYS))
        if (figures := _figures(question, layout, cluster, window, way)) is not None
    }
    whole = found.get(ALL) if window is None else _figures(question, layout, cluster, None, ALL)
    if 0 not in found or ALL not in found or whole is None:
        return ()
    most, least = found[0].kept_bytes, found[ALL].kept_bytes
    return tuple(
        Share(
            way=way,
            kept=(figures.kept_bytes - least) / max(most - least, 1),
            compute=figures.compute_s / whole.compute_s,
            wait=figures.wait_s / whole.wait_s if whole.wait_s else 0.0,
        )
        for way, figures in found.items()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Figures:
    kept_bytes: int
    compute_s: float
    wait_s: float


def _figures(
    question: Question, layout: Layout, cluster: Cluster, window: int | None, way: int
) -> _Figures | None:
    alone = Layout(
        devices=layout.tensor * layout.context * layout.expert,
        tensor=layout.tensor,
        context=layout.context,
        expert=layout.expert,
        sequence_parallel=layout.sequence_parallel,
        recompute=(way,),
    )
    asked = replace(
        question,
        network=_one_layer(question.network, window),
        batch=layout.expert,
        devices=(alone.devices,),
        shares=None,
        pools=(),
    )
    return _compiled(asked, alone, cluster)


@lru_cache(maxsize=1024)
def _compiled(asked: Question, alone: Layout, cluster: Cluster) -> _Figures | None:
    """Of one layer of the network on the tensor, context and expert axes alone; None if it cannot be compiled."""
    try:
        plan = plan_of(asked, alone, cluster, shares=None)
    except StrategyError:
        return None
    counts = counts_of(plan)
    block = next(block for block in plan.blocks if block.layers)
    again = counts.flops[block.name][0].recompute
    passes_s = sum(_moved_bytes(plan, block)) / asked.fabric.memory_bytes_per_s
    return _Figures(
        kept_bytes=block_bytes(plan, block, counts.holdings.parameters[block.name]).kept,
        compute_s=compute_s(again, asked.fabric.product_flops_per_s) + passes_s,
        wait_s=_wait_s(counts, block, cluster),
    )


def _one_layer(network: Network, window: int | None) -> Network:
    return replace(network, layers=1, window=window or 0, full_layers=0)


def _moved_bytes(plan: Plan, block: Block) -> Iterator[int]:
    """What operators that are no products read and write."""
    for operator in block.recompute:
        if operator.kind not in _PRODUCTS and operator.transfer is None:
            for name in (*operator.inputs, *operator.outputs):
                yield value_bytes(block.values[name], plan.axis_sizes)


_PRODUCTS = (
    OperatorKind.LINEAR,
    OperatorKind.EXPERT_LINEAR,
    OperatorKind.ATTENTION,
    OperatorKind.RING_ATTENTION,
)


def _wait_s(counts: Counts, block: Block, cluster: Cluster) -> float:
    return sum(
        collective_time(use, cluster).seconds
        for use in counts.uses[0]
        if use.traffic.block == block.name and use.traffic.phase is Phase.RECOMPUTE and not runs_beside(use)
    )
