"""Exchange with the partner at distance 1, 2, 4, …: log2 n rounds of whole tensors."""

from collections.abc import Iterator

from trimtab.plan.collectives.request import Request, Send


def recursive_doubling(request: Request) -> Iterator[Send]:
    """The sum of a whole tensor on a power of two of ranks (Thakur et al. 2005)."""
    distance = 1
    while distance < request.ranks:
        for index in range(request.ranks):
            yield Send(index, index ^ distance, request.elements)
        distance *= 2
