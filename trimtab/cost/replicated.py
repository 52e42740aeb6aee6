"""Memory and traffic of a rank when parameters are replicated and the batch is cut into parts.

Sources of the formulas: what the runtime allocates (flat fp32 vectors, one leaf for each own share) and the
collectives that it calls. Activations are not in here: what a backward pass keeps depends on the kernels.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.plan.layout import BYTES_PER_ELEMENT, ReplicatedLayout
from trimtab.plan.shares import assign_shares, own_blocks

REDUCE_FORMULA = (
    "out = b (n - 1) e 4: each of b own subtrees, to each of n - 1 peers, in pieces of e elements"
)
GATHER_FORMULA = "out = (n - 1) e 4: the own piece of e elements passed on around all n ranks"
ALL_REDUCE_FORMULA = "out = 2 (n - 1) / n L 4: a ring over L elements, the backend's own"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Bytes that one rank holds between and during steps, by class; fp32 throughout."""

    parameters_bytes: int
    gradients_bytes: int
    """One leaf for each own part, and the scaled sum that the optimizer reads."""
    optimizer_bytes: int
    exchange_bytes: int
    """What is sent and received in the sum over ranks."""
    kept_exchange_bytes: int
    """Of it, what stays from one step to the next: sums of own subtrees, and the gathered sum of all."""
    staging_bytes: int
    """Memory shared with the checkpoint's writer; on the rank that saves."""

    @property
    def total_bytes(self) -> int:
        """All classes together."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.exchange_bytes
            + self.staging_bytes
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTraffic:
    """Bytes that one rank sends in one step."""

    reduce_bytes: int
    gather_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both phases together."""
        return self.reduce_bytes + self.gather_bytes


def rank_memory(
    layout: ReplicatedLayout,
    *,
    ranks: int,
    own_parts: int,
    own_blocks: int,
    all_blocks: int,
    states: int,
    is_saving: bool,
) -> RankMemory:
    """What one of ``ranks`` ranks holds.

    Args:
        layout: Of the run.
        ranks: Living ranks.
        own_parts: Shares that this rank computes.
        own_blocks: Complete subtrees that it sums by itself: the fewest that cover its shares.
        all_blocks: Those of all ranks together.
        states: Vectors that the optimizer keeps.
        is_saving: Whether this rank writes checkpoints.
    """
    vector_bytes = layout.num_elements * BYTES_PER_ELEMENT
    leaf_bytes = layout.leaf_capacity * BYTES_PER_ELEMENT
    piece_bytes = layout.piece_elements(ranks) * BYTES_PER_ELEMENT
    exchange_bytes = full_bytes = 0
    if not layout.has_fixed_order:
        exchange_bytes = layout.leaf_elements * BYTES_PER_ELEMENT
    elif ranks > 1:
        sent_bytes = piece_bytes * ranks * own_blocks if own_blocks > 1 else 0
        full_bytes = piece_bytes * ranks
        exchange_bytes = sent_bytes + piece_bytes * all_blocks + full_bytes
    partial_sums = (own_parts - own_blocks) if layout.has_fixed_order else 0
    return RankMemory(
        parameters_bytes=vector_bytes,
        gradients_bytes=own_parts * leaf_bytes + vector_bytes,
        optimizer_bytes=states * vector_bytes,
        exchange_bytes=exchange_bytes + partial_sums * leaf_bytes,
        kept_exchange_bytes=full_bytes + partial_sums * leaf_bytes,
        staging_bytes=(1 + states) * layout.num_parameters * BYTES_PER_ELEMENT if is_saving else 0,
    )


def rank_traffic(layout: ReplicatedLayout, *, ranks: int, own_blocks: int) -> RankTraffic:
    """What one of ``ranks`` ranks sends in a step, by the formulas above.

    The reduce is an all-to-all of subtrees, the gather a ring all-gather. With shares off it is one
    all-reduce of the backend, counted half and half.
    """
    peers = ranks - 1
    if not layout.has_fixed_order:
        half_bytes = peers * layout.leaf_elements * BYTES_PER_ELEMENT // ranks
        return RankTraffic(reduce_bytes=half_bytes, gather_bytes=half_bytes)
    piece_bytes = layout.piece_elements(ranks) * BYTES_PER_ELEMENT
    return RankTraffic(reduce_bytes=own_blocks * peers * piece_bytes, gather_bytes=peers * piece_bytes)


def figures_of(
    layout: ReplicatedLayout, *, states: int, saves: bool
) -> Iterator[tuple[RankMemory, RankTraffic, list[int]]]:
    """Memory, traffic and shares of each rank of the whole run, in order.

    Args:
        layout: Of the run.
        states: Vectors that the optimizer keeps.
        saves: Whether the run writes checkpoints; rank 0 does.
    """
    shares = shares_by_rank(layout, layout.devices)
    blocks = [len(own_blocks(own, layout.num_parts)) for own in shares]
    for rank, own in enumerate(shares):
        memory = rank_memory(
            layout,
            ranks=layout.devices,
            own_parts=len(own),
            own_blocks=blocks[rank],
            all_blocks=sum(blocks),
            states=states,
            is_saving=saves and rank == 0,
        )
        yield memory, rank_traffic(layout, ranks=layout.devices, own_blocks=blocks[rank]), own


def largest_allocated(layout: ReplicatedLayout, *, states: int, saves: bool) -> RankMemory:
    """What the rank that needs most allocates."""
    memories = (memory for memory, _, _ in figures_of(layout, states=states, saves=saves))
    return max(memories, key=lambda memory: memory.total_bytes)


def shares_by_rank(layout: ReplicatedLayout, ranks: int) -> list[list[int]]:
    """Which shares each of some ranks computes."""
    found: list[list[int]] = [[] for _ in range(ranks)]
    for share, owner in enumerate(assign_shares(layout.num_parts, range(ranks))):
        found[owner].append(share)
    return found
