"""Inside each place first, between places last: the slow link carries one piece instead of everything.

A sum is scattered among the ranks of a node, summed between the ranks of all nodes that hold the same piece, and
gathered inside the node. With several levels the middle part is done the same way at the next level.
"""

from collections.abc import Iterator, Sequence

from trimtab.plan.collectives.request import Request, Send
from trimtab.plan.collectives.ring import ring
from trimtab.plan.program import OperatorKind


def hierarchical(request: Request, levels: Sequence[int]) -> Iterator[Send]:
    """Messages of a sum over places.

    Args:
        request: A sum; every place holds as many ranks of the group as every other.
        levels: Indices into the places of a rank, smallest level first.
    """
    yield from _sum(request, list(range(request.ranks)), request.elements, levels)


def _sum(request: Request, members: Sequence[int], elements: int, levels: Sequence[int]) -> Iterator[Send]:
    if not levels or len(members) == 1:
        piece = -(-elements // len(members))
        yield from _around(request, members, elements, piece, request.kind)
        return
    first, *rest = levels
    by_place: dict[int | None, list[int]] = {}
    for member in members:
        by_place.setdefault(request.places[member][first], []).append(member)
    inside = len(next(iter(by_place.values())))
    piece = -(-elements // inside)
    for ranks in by_place.values():
        yield from _around(request, ranks, elements, piece, OperatorKind.REDUCE_SCATTER)
    for same_piece in zip(*by_place.values(), strict=True):
        yield from _sum(request, list(same_piece), piece, rest)
    if request.kind is OperatorKind.ALL_REDUCE:
        for ranks in by_place.values():
            yield from _around(request, ranks, piece, piece, OperatorKind.ALL_GATHER)


def _around(
    request: Request, members: Sequence[int], elements: int, piece: int, kind: OperatorKind
) -> Iterator[Send]:
    if len(members) == 1:
        return
    places = tuple(request.places[member] for member in members)
    for send in ring(Request(kind=kind, elements=elements, piece=piece, places=places)):
        yield Send(members[send.source], members[send.target], send.elements)
