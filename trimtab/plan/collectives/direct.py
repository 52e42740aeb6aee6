"""Straight to everyone: each rank sends every other rank the piece that it is to have."""

from collections.abc import Iterator

from trimtab.plan.collectives.request import Request, Send
from trimtab.plan.program import OperatorKind


def direct(request: Request) -> Iterator[Send]:
    """A reduce-scatter by the owner of each piece, an all-gather by everyone, or both for an all-reduce."""
    if request.kind is OperatorKind.ALL_TO_ALL:
        yield from exchange(request)
        return
    times = 2 if request.kind is OperatorKind.ALL_REDUCE else 1
    for source, target in _pairs(request.ranks):
        yield Send(source, target, times * request.piece)


def exchange(request: Request) -> Iterator[Send]:
    """An all-to-all: one piece to each other rank."""
    for source, target in _pairs(request.ranks):
        yield Send(source, target, request.piece)


def _pairs(ranks: int) -> Iterator[tuple[int, int]]:
    return ((source, target) for source in range(ranks) for target in range(ranks) if source != target)
