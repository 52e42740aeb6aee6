"""The routes by name, and what each can carry."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from trimtab.plan.collectives.direct import direct
from trimtab.plan.collectives.hierarchical import hierarchical
from trimtab.plan.collectives.recursive_doubling import recursive_doubling
from trimtab.plan.collectives.request import Request, Send
from trimtab.plan.collectives.ring import ring
from trimtab.plan.collectives.tree import tree
from trimtab.plan.program import OperatorKind


class RouteError(Exception):
    """A route that cannot carry a collective; the message says why and what can."""


ROUTES: dict[str, Callable[[Request], Iterator[Send]]] = {
    # The backend's own choice is counted as the ring that NCCL and gloo use for large tensors.
    "native": ring,
    "ring": ring,
    "reduce_scatter": direct,
    "tree": tree,
    "recursive_doubling": recursive_doubling,
}
"""``hierarchical`` takes levels and stands apart."""

LEVELS = ("node", "rack", "site")
"""Levels of a place, smallest first."""


def sends_of(route: str, request: Request, levels: Sequence[str] = ()) -> tuple[Send, ...]:
    """The messages of one run of a collective.

    Raises: RouteError if the route cannot carry it.
    """
    if request.ranks == 1:
        return ()
    if route == "hierarchical":
        _check_sum(request)
        indices = [LEVELS.index(level) for level in levels] or [0]
        _check_places(request, indices, levels or ("node",))
        return tuple(hierarchical(request, indices))
    if route in ("tree", "recursive_doubling"):
        _check_whole(route, request)
    return tuple(ROUTES[route](request))


def _check_sum(request: Request) -> None:
    if request.kind not in (OperatorKind.ALL_REDUCE, OperatorKind.REDUCE_SCATTER):
        raise RouteError(f"hierarchical is a route for sums; {request.kind.value} goes by ring or native")


def _check_whole(route: str, request: Request) -> None:
    if request.kind is not OperatorKind.ALL_REDUCE:
        raise RouteError(
            f"{route} sums whole tensors on every rank, and this sum is scattered into stored pieces; use ring, "
            "hierarchical or native"
        )
    if route == "recursive_doubling" and request.ranks & (request.ranks - 1):
        raise RouteError(
            f"recursive_doubling needs a power of two of ranks, and the group has {request.ranks}; use tree"
        )


def _check_places(request: Request, indices: Sequence[int], levels: Sequence[str]) -> None:
    for index, level in zip(indices, levels, strict=True):
        places = Counter(place[index] for place in request.places)
        if None in places:
            raise RouteError(
                f"the cluster does not tell its {level}s; use hierarchical(node), ring or native"
            )
        if len(set(places.values())) > 1:
            raise RouteError(
                f"hierarchical needs as many ranks of the group on every {level}, and it has "
                f"{', '.join(str(count) for count in places.values())}; use ring or native"
            )
