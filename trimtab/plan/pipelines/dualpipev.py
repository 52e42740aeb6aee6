"""DualPipe-V: two stages per rank in a V, each forward pass paired with the backward pass of another microbatch.

The pairs exist so that the communication inside one pass (of experts, say) can hide behind the other; here, as
in torch unless it is told otherwise, the forward pass of a pair runs before its backward pass.
Source: DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437, and their published code, https://github.com/deepseek-ai/DualPipe.
"""

from trimtab.plan.pipelines.actions import PipelineShape, RankActions, RankOrder


def dualpipev_actions(rank: int, shape: PipelineShape) -> RankActions:
    """The actions of a rank, which holds one stage on the way down and one on the way up."""
    down, up = rank, shape.num_stages - 1 - rank
    to_the_turn = shape.ranks - 1 - rank
    order = RankOrder()
    _warm_up(order, down, up, to_the_turn)
    for _ in range(shape.microbatches - shape.num_stages + rank + 1):
        order.forward(down)
        order.backward(up)
        order.forward(up)
        order.backward(down)
    for _ in range(to_the_turn):
        order.backward(up)
        order.forward(up)
        order.backward(down)
    _cool_down(order, down, up, to_the_turn)
    return order.finished()


def _warm_up(order: RankOrder, down: int, up: int, to_the_turn: int) -> None:
    for _ in range(2 * to_the_turn):
        order.forward(down)
    for _ in range(down + 1):
        order.forward(down)
        order.forward(up)
    for _ in range(to_the_turn):
        order.backward_input(up)
        order.backward_weight()
        order.forward(up)


def _cool_down(order: RankOrder, down: int, up: int, to_the_turn: int) -> None:
    """The last backward passes: whole ones first, then input halves that run ahead of their weight halves."""
    num_whole = down + 1
    for turn in range(2 * num_whole):
        stage = down if turn % 2 else up
        if turn < num_whole:
            order.backward(stage)
        else:
            order.backward_input(stage)
    for _ in range(to_the_turn):
        order.backward_weight()
        order.backward_input(down)
