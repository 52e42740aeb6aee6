"""A computation that hands out microbatches to whoever drives it, and is sent what became of each."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Computed:
    """The answer about one microbatch, whose backward pass is done: the gradients stand in the parameters.

    Args:
        loss_sum: Over the targets, a scalar without a graph.
        tokens: Positions computed, and ``targets``, those of them that count for the loss.
    """

    loss_sum: Tensor
    targets: int
    tokens: int


Asking = Generator[Any, Computed | None, T]
"""A computation that hands out microbatches and is sent what became of each; it returns T."""


def answered(asking: Asking[T], answer: Callable[[Any], Computed | None]) -> T:
    """What a computation returns whose every question is answered by a function.

    What the function raises is raised where the question was asked: an epoch may end in the middle of a backward pass that
    waits for other ranks, and the computation goes on with the next one.
    """
    reply: Computed | None = None
    raised: Exception | None = None
    while True:
        try:
            question = asking.send(reply) if raised is None else asking.throw(raised)
        except StopIteration as end:
            returned: T = end.value
            return returned
        reply = raised = None
        try:
            reply = answer(question)
        except Exception as error:  # noqa: BLE001 - whatever it is: who asked knows what it means
            raised = error
