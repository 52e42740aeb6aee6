"""How does a sum or a gather travel, hop by hop?

Each route is the one of the same name in ``trimtab.plan.collectives``, which counts its messages; here they are sent.
``native`` is the backend's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.runtime.lowering.wires import Combine, Line


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """How the ranks of a group send.

    Args:
        name: ``native``, ``ring``, ``reduce_scatter``, ``tree``, ``recursive_doubling``, ``hierarchical``.
        levels: Of a hierarchical route: for each level, smallest first, where each place of the group stands.
    """

    name: str
    levels: tuple[tuple[int | None, ...], ...] = ()

    def all_reduce(self, line: Line, flat: Tensor, operation: str) -> Tensor:
        """The sum or maximum over all places, at every place; may be written over ``flat``."""
        combine = _COMBINE[operation]
        match self.name:
            case "native":
                return line.all_reduce(flat, operation)
            case "tree":
                return _tree(line, flat, combine)
            case "recursive_doubling":
                return _recursive_doubling(line, flat, combine)
            case "hierarchical":
                return _hierarchical_sum(line, flat, combine, self.levels)
            case "reduce_scatter":
                own = _direct_scatter(line, _in_chunks(flat, line.size), combine)
                return torch.cat(_direct_gather(line, own))[: flat.numel()]
        return _ring_sum(line, flat, combine)

    def reduce_scatter(self, line: Line, chunks: Sequence[Tensor], operation: str) -> Tensor:
        """The sum of the chunks that all places have for this one."""
        combine = _COMBINE[operation]
        match self.name:
            case "native":
                return line.reduce_scatter(chunks, operation)
            case "hierarchical":
                return _hierarchical_scatter(line, chunks, combine, self.levels)
            case "reduce_scatter":
                return _direct_scatter(line, chunks, combine)
        return _ring_scatter(line, chunks, combine)

    def all_gather(self, line: Line, piece: Tensor) -> list[Tensor]:
        """Everyone's piece, in order of place."""
        match self.name:
            case "native":
                return line.all_gather(piece)
            case "reduce_scatter":
                return _direct_gather(line, piece)
        return _ring_gather(line, piece)


def _added(total: Tensor, arrived: Tensor) -> Tensor:
    """The sum, in place of what has just arrived: no third vector lives meanwhile."""
    return torch.add(total, arrived, out=arrived)


def _larger(total: Tensor, arrived: Tensor) -> Tensor:
    """As ``_added``."""
    return torch.maximum(total, arrived, out=arrived)


_COMBINE: dict[str, Combine] = {"sum": _added, "max": _larger}


def _ring_sum(line: Line, flat: Tensor, combine: Combine) -> Tensor:
    """Scattered, then gathered, on equal chunks of the padded vector."""
    if line.size == 1:
        return flat
    own = _ring_scatter(line, _in_chunks(flat, line.size), combine)
    return torch.cat(_ring_gather(line, own))[: flat.numel()]


def _ring_scatter(line: Line, chunks: Sequence[Tensor], combine: Combine) -> Tensor:
    """The chunk of each place starts behind it and comes home after n - 1 hops (Thakur et al. 2005)."""
    held, size, place = list(chunks), line.size, line.place
    for hop in range(size - 1):
        leaving, arriving = (place - hop - 1) % size, (place - hop - 2) % size
        arrived = line.swap((place + 1) % size, held[leaving], (place - 1) % size, held[arriving])
        held[arriving] = combine(held[arriving], arrived)
    return held[place]


def _ring_gather(line: Line, piece: Tensor) -> list[Tensor]:
    size, place = line.size, line.place
    held = {place: piece}
    for hop in range(size - 1):
        leaving, arriving = (place - hop) % size, (place - hop - 1) % size
        held[arriving] = line.swap((place + 1) % size, held[leaving], (place - 1) % size, piece)
    return [held[index] for index in range(size)]


def _direct_scatter(line: Line, chunks: Sequence[Tensor], combine: Combine) -> Tensor:
    others = [place for place in range(line.size) if place != line.place]
    sent = [line.send(place, chunks[place]) for place in others]
    total = chunks[line.place]
    for place in others:
        total = combine(total, line.receive(place, total))
    for posted in sent:
        posted.wait()
    return total


def _direct_gather(line: Line, piece: Tensor) -> list[Tensor]:
    others = [place for place in range(line.size) if place != line.place]
    sent = [line.send(place, piece) for place in others]
    found = {line.place: piece} | {place: line.receive(place, piece) for place in others}
    for posted in sent:
        posted.wait()
    return [found[place] for place in range(line.size)]


def _tree(line: Line, flat: Tensor, combine: Combine) -> Tensor:
    """Up a binomial tree and down again; the parent of a place has its lowest set bit cleared."""
    total, place = flat, line.place
    children = [place | bit for bit in _bits_below(place, line.size)]
    for child in reversed(children):
        total = combine(total, line.receive(child, flat))
    if place:
        parent = place & (place - 1)
        line.send(parent, total).wait()
        total = line.receive(parent, flat)
    for posted in [line.send(child, total) for child in children]:
        posted.wait()
    return total


def _bits_below(place: int, size: int) -> list[int]:
    """The bits below the lowest set bit of a place that lead to other places.

    >>> _bits_below(0, 5), _bits_below(2, 4), _bits_below(3, 4)
    ([1, 2, 4], [1], [])
    """
    found, bit = [], 1
    while place | bit < size and not place & bit:
        found.append(bit)
        bit *= 2
    return found


def _recursive_doubling(line: Line, flat: Tensor, combine: Combine) -> Tensor:
    """Whole vectors are swapped with the partner at distance 1, 2, 4, …"""
    total, distance = flat, 1
    while distance < line.size:
        partner = line.place ^ distance
        arrived = line.swap(partner, total, partner, total)
        total = combine(total, arrived)  # Of two summands: both partners get the same bits.
        distance *= 2
    return total


def _hierarchical_sum(
    line: Line, flat: Tensor, combine: Combine, levels: Sequence[Sequence[int | None]]
) -> Tensor:
    """Scattered inside each place, summed between places, gathered inside."""
    if not levels or line.size == 1:
        return _ring_sum(line, flat, combine)
    inside, across = _inside_and_across(line, levels[0])
    near = line.among(inside)
    own = _ring_scatter(near, _in_chunks(flat, near.size), combine)
    rest = [[level[place] for place in across] for level in levels[1:]]
    own = _hierarchical_sum(line.among(across), own, combine, rest)
    return torch.cat(_ring_gather(near, own))[: flat.numel()]


def _hierarchical_scatter(
    line: Line, chunks: Sequence[Tensor], combine: Combine, levels: Sequence[Sequence[int | None]]
) -> Tensor:
    """Inside each place a rank collects what is meant for the ranks that stand like it, then passes it on."""
    if not levels or line.size == 1:
        return _ring_scatter(line, chunks, combine)
    by_place = _by_place(range(line.size), levels[0])
    inside, across = _inside_and_across(line, levels[0])
    rows = [torch.cat([chunks[place] for place in alike]) for alike in zip(*by_place, strict=True)]
    own = _ring_scatter(line.among(inside), rows, combine)
    rest = [[level[place] for place in across] for level in levels[1:]]
    return _hierarchical_scatter(line.among(across), list(own.chunk(len(across))), combine, rest)


def _inside_and_across(line: Line, level: Sequence[int | None]) -> tuple[list[int], list[int]]:
    """The places that share this one's place of a level, and those that stand in the others as it does in its own."""
    by_place = _by_place(range(line.size), level)
    inside = next(places for places in by_place if line.place in places)
    position = inside.index(line.place)
    return inside, [places[position] for places in by_place]


def _by_place(places: Sequence[int], level: Sequence[int | None]) -> list[list[int]]:
    found: dict[int | None, list[int]] = {}
    for place in places:
        found.setdefault(level[place], []).append(place)
    return list(found.values())


def _in_chunks(flat: Tensor, chunks: int) -> list[Tensor]:
    """Equal ones, the last padded with zeros."""
    size = -(-flat.numel() // chunks)
    missing = size * chunks - flat.numel()
    padded = torch.nn.functional.pad(flat, (0, missing)) if missing else flat
    return list(torch.split(padded, size)) if size else [flat] * chunks
