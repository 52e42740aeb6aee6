"""GPipe: every forward pass, then every backward pass.

Source: Huang et al. 2019, https://arxiv.org/abs/1811.06965.
"""

from trimtab.plan.pipelines.actions import PipelineShape, RankActions, RankOrder


def gpipe_actions(rank: int, shape: PipelineShape) -> RankActions:
    """The actions of a rank, which holds the stage of its own number."""
    order = RankOrder()
    for _ in range(shape.microbatches):
        order.forward(rank)
    for _ in range(shape.microbatches):
        order.backward(rank)
    return order.finished()
