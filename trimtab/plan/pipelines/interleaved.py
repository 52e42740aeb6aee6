"""Interleaved 1F1B, and its variant that delays the weight half of a backward pass to fill the bubble.

A rank holds every ``ranks``-th stage. Microbatches travel in rounds: a round passes through the first stage of a
rank before the same round enters its second. Both schedules are one walk; they differ in how many forward passes
a rank runs ahead, and in whether a backward pass is cut in two.

Sources: Narayanan et al. 2021, https://arxiv.org/abs/2104.04473 (interleaved 1F1B); Qi et al. 2023,
https://arxiv.org/abs/2401.10241 (zero bubble: ZB1P). Rounds of other than ``ranks`` microbatches are torch's.
"""

from dataclasses import dataclass

from trimtab.plan.pipelines.actions import PipelineShape, RankActions, RankOrder


def interleaved_1f1b_actions(rank: int, shape: PipelineShape) -> RankActions:
    """The actions of a rank: it runs ahead of the next rank by two forward passes."""
    walk = _Walk.of(rank, shape, lead=2)
    order = RankOrder()
    for turn in range(walk.warmup):
        order.forward(walk.forward_stage(turn))
    for turn in range(walk.warmup, walk.total):
        order.forward(walk.forward_stage(turn))
        order.backward(walk.backward_stage(turn - walk.warmup))
    for turn in range(walk.total - walk.warmup, walk.total):
        order.backward(walk.backward_stage(turn))
    return order.finished()


def interleaved_zero_bubble_actions(rank: int, shape: PipelineShape) -> RankActions:
    """The actions of a rank: it runs ahead by one forward pass, and owes at most ``rank`` weight halves."""
    walk = _Walk.of(rank, shape, lead=1)
    order = RankOrder()
    for turn in range(walk.warmup):
        order.forward(walk.forward_stage(turn))
    for turn in range(walk.total):
        if walk.warmup + turn < walk.total:
            order.forward(walk.forward_stage(walk.warmup + turn))
        order.backward_input(walk.backward_stage(turn))
        if turn >= rank:
            order.backward_weight()
    return order.finished()


def num_rounds(shape: PipelineShape) -> int:
    """Rounds that the microbatches travel in; these schedules need rounds of one length."""
    return max(1, shape.microbatches // shape.ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Walk:
    """The order in which a rank visits its stages.

    Args:
        rank: The rank.
        shape: The pipeline.
        round_length: Microbatches of one round.
        warmup: Forward passes before the first backward pass is due.
    """

    rank: int
    shape: PipelineShape
    round_length: int
    warmup: int

    @classmethod
    def of(cls, rank: int, shape: PipelineShape, *, lead: int) -> "_Walk":
        """The walk of a rank that runs ``lead`` forward passes ahead of the next rank."""
        round_length = shape.microbatches // num_rounds(shape)
        ahead = (shape.stages_per_rank - 1) * round_length + lead * (shape.ranks - 1 - rank)
        warmup = min(ahead, shape.microbatches * shape.stages_per_rank)
        return cls(rank=rank, shape=shape, round_length=round_length, warmup=warmup)

    @property
    def total(self) -> int:
        """Forward passes of the rank in a step, and backward passes."""
        return self.shape.microbatches * self.shape.stages_per_rank

    def forward_stage(self, turn: int) -> int:
        """The stage of the forward pass number ``turn``."""
        return self._local_index(turn) * self.shape.ranks + self.rank

    def backward_stage(self, turn: int) -> int:
        """The stage of the backward pass number ``turn``: the last stage first."""
        from_the_end = self._local_index(turn)
        return (self.shape.stages_per_rank - 1 - from_the_end) * self.shape.ranks + self.rank

    def _local_index(self, turn: int) -> int:
        return (turn // self.round_length) % self.shape.stages_per_rank
