"""Up a binomial tree and down again: few hops for small tensors, every rank sends whole ones."""

from collections.abc import Iterator

from trimtab.plan.collectives.request import Request, Send


def tree(request: Request) -> Iterator[Send]:
    """The sum of a whole tensor at rank 0, then back; the parent of rank i is i without its lowest set bit."""
    for index in range(1, request.ranks):
        parent = index & (index - 1)
        yield Send(index, parent, request.elements)
        yield Send(parent, index, request.elements)
