"""Around a ring: every rank sends to the next.

A sum is scattered in n - 1 hops of one piece and gathered in n - 1 more (Thakur et al. 2005); an all-to-all goes
straight.
"""

from collections.abc import Iterator

from trimtab.plan.collectives.direct import exchange
from trimtab.plan.collectives.request import Request, Send
from trimtab.plan.program import OperatorKind


def ring(request: Request) -> Iterator[Send]:
    """Messages of a ring over all ranks of the group."""
    if request.kind is OperatorKind.ALL_TO_ALL:
        yield from exchange(request)
        return
    hops = (request.ranks - 1) * request.piece
    if request.kind is OperatorKind.ALL_REDUCE:
        hops *= 2
    for index in range(request.ranks):
        yield Send(index, (index + 1) % request.ranks, hops)
