"""1F1B: a rank starts the backward passes as soon as it can, and alternates.

The bubble is that of GPipe; a rank holds at most as many microbatches as there are stages from it to the end.
Source: Narayanan et al. 2019 (PipeDream-Flush), https://arxiv.org/abs/2006.09503.
"""

from trimtab.plan.pipelines.actions import PipelineShape, RankActions, RankOrder


def one_f_one_b_actions(rank: int, shape: PipelineShape) -> RankActions:
    """The actions of a rank, which holds the stage of its own number."""
    warmup = min(shape.microbatches, shape.ranks - rank)
    order = RankOrder()
    for _ in range(warmup):
        order.forward(rank)
    for _ in range(shape.microbatches - warmup):
        order.backward(rank)
        order.forward(rank)
    for _ in range(warmup):
        order.backward(rank)
    return order.finished()
