"""ZB-V: two stages per rank in a V, backward passes cut in two.

The rank that holds the first stage holds the last one too, so the loss is known where the step began. With
forward pass, input half and weight half equally long, a rank that has started does not wait.
Source: Qi et al. 2023, section 6, https://arxiv.org/abs/2401.10241.
"""

from trimtab.plan.pipelines.actions import PipelineShape, RankActions, RankOrder


def zbv_actions(rank: int, shape: PipelineShape) -> RankActions:
    """The actions of a rank, which holds one stage on the way down and one on the way up.

    The order is that of at least ``2 ranks - 1`` microbatches; those that do not exist are left out.
    """
    microbatches = max(2 * shape.ranks - 1, shape.microbatches)
    down, up = rank, shape.num_stages - 1 - rank
    order = RankOrder()
    num_started = _warm_up(order, down, up, ranks=shape.ranks)
    for turn in range(microbatches - shape.ranks):
        if num_started + turn < microbatches:
            order.forward(down)
        _backward(order, down)
        order.forward(up)
        _backward(order, up)
    _cool_down(order, down, up, ranks=shape.ranks)
    return tuple(action for action in order.finished() if action.microbatch < shape.microbatches)


def _warm_up(order: RankOrder, down: int, up: int, *, ranks: int) -> int:
    """Fill the V; returns the microbatches that have gone down."""
    rank = down
    for _ in range(2 * (ranks - rank) - 1):
        order.forward(down)
    for _ in range(rank):
        order.forward(up)
        order.forward(down)
    for _ in range(ranks - rank):
        order.forward(up)
        _backward(order, up)
    return 2 * ranks - 1 - rank


def _cool_down(order: RankOrder, down: int, up: int, *, ranks: int) -> None:
    """Let the input halves run ahead, so that the ranks before can end; weight halves fill what is left."""
    rank = down
    for _ in range(rank):
        order.backward_input(down)
        order.backward_input(up)
    for _ in range(ranks - rank):
        order.backward_input(down)
        order.backward_weights_of(down, at_most=1)
    order.backward_weights_of(up)


def _backward(order: RankOrder, stage: int) -> None:
    order.backward_input(stage)
    order.backward_weights_of(stage, at_most=1)
