"""Carries numbers between ranks, hop by hop, and counts what each rank sends.

Every route is performed: a ring really hands chunks around, a tree really adds on the way to its root. What arrives
is what was sent, so a route that forgets a summand computes wrong, and one that sends more is seen to.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from symbolic_pieces import Array, equal_parts

Combine = Callable[[Array, Array], Array]
"""Sum or maximum of two arrays of one shape."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What is sent: what the plan's list of messages is compared by."""

    block: str
    phase: str
    kind: str
    tensors: tuple[str, ...]
    axes: tuple[str, ...]
    route: str


class Wires:
    """All messages of a step.

    Attributes:
        sent_bytes: By what is sent, then by sender and receiver.
        runs: By what is sent, then by rank: how often it took part.
    """

    def __init__(self) -> None:
        self.sent_bytes: dict[Sent, dict[tuple[int, int], int]] = {}
        self.runs: dict[Sent, dict[int, int]] = {}

    def line(
        self, what: Sent, ranks: Sequence[int], bytes_per_element: int, *, only_first_sends: bool = False
    ) -> "Line":
        """The wires between some ranks for one run of a collective, or of a message of the first to the second."""
        runs = self.runs.setdefault(what, defaultdict(int))
        for rank in ranks[:1] if only_first_sends else ranks:
            runs[rank] += 1
        return Line(self.sent_bytes.setdefault(what, defaultdict(int)), ranks, bytes_per_element)


class Line:
    """The wires between the ranks of one group, which are named by their place in it."""

    def __init__(
        self, sent_bytes: dict[tuple[int, int], int], ranks: Sequence[int], bytes_per_element: int
    ) -> None:
        self._sent_bytes = sent_bytes
        self._ranks = ranks
        self._bytes_per_element = bytes_per_element

    def send(self, source: int, target: int, array: Array) -> Array:
        """What arrives at the target."""
        pair = self._ranks[source], self._ranks[target]
        self._sent_bytes[pair] += array.size * self._bytes_per_element
        return array


class Route:
    """How a group sends.

    Args:
        name: ``native``, ``ring``, ``reduce_scatter``, ``tree``, ``recursive_doubling``, ``hierarchical``.
        places: For a hierarchical route: for each level, smallest first, where each rank of the group stands.
    """

    def __init__(self, name: str, places: Sequence[Sequence[int]] = ()) -> None:
        self._name = name
        self._places = tuple(places)

    def all_reduce(self, line: Line, arrays: Sequence[Array], combine: Combine) -> list[Array]:
        """The sum of flat arrays, everywhere."""
        everyone = range(len(arrays))
        if self._name == "tree":
            return _tree(line, arrays, combine)
        if self._name == "recursive_doubling":
            return _recursive_doubling(line, arrays, combine)
        if self._name == "hierarchical":
            found = _hierarchical_sum(line, dict(enumerate(arrays)), combine, self._places)
            return [found[place] for place in everyone]
        scatter, gather = _DIRECT if self._name == "reduce_scatter" else _RING
        return _scattered_and_gathered(line, list(everyone), arrays, combine, scatter, gather)

    def reduce_scatter(self, line: Line, chunks: Sequence[Sequence[Array]], combine: Combine) -> list[Array]:
        """For each place the sum of the chunks that are meant for it; ``chunks[place][target]``."""
        everyone = list(range(len(chunks)))
        if self._name == "hierarchical":
            by_target = {place: dict(enumerate(row)) for place, row in enumerate(chunks)}
            found = _hierarchical_scatter(line, by_target, combine, self._places)
            return [found[place] for place in everyone]
        scatter, _ = _DIRECT if self._name == "reduce_scatter" else _RING
        return scatter(line, everyone, chunks, combine)

    def all_gather(self, line: Line, pieces: Sequence[Array]) -> list[list[Array]]:
        """Everyone's piece at every place, in order of places."""
        _, gather = _DIRECT if self._name == "reduce_scatter" else _RING
        return gather(line, list(range(len(pieces))), pieces)


def exchange(line: Line, chunks: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """An all-to-all: ``chunks[source][target]`` in, ``[target][source]`` out."""
    everyone = range(len(chunks))
    return [
        [
            chunks[source][target] if source == target else line.send(source, target, chunks[source][target])
            for source in everyone
        ]
        for target in everyone
    ]


def _ring_scatter(
    line: Line, order: Sequence[int], chunks: Sequence[Sequence[Array]], combine: Combine
) -> list[Array]:
    """The chunk of each member starts behind it and comes home after n - 1 hops."""
    ranks = len(order)
    held = [list(row) for row in chunks]
    for hop in range(ranks - 1):
        moving = [(place, (place - hop - 1) % ranks) for place in range(ranks)]
        arrived = [
            line.send(order[place], order[(place + 1) % ranks], held[place][chunk]) for place, chunk in moving
        ]
        for (place, chunk), array in zip(moving, arrived, strict=True):
            target = held[(place + 1) % ranks]
            target[chunk] = combine(target[chunk], array)
    return [held[place][place] for place in range(ranks)]


def _ring_gather(line: Line, order: Sequence[int], pieces: Sequence[Array]) -> list[list[Array]]:
    ranks = len(order)
    held: list[dict[int, Array]] = [{place: pieces[place]} for place in range(ranks)]
    for hop in range(ranks - 1):
        for place in range(ranks):
            chunk, target = (place - hop) % ranks, (place + 1) % ranks
            held[target][chunk] = line.send(order[place], order[target], held[place][chunk])
    return [[row[chunk] for chunk in range(ranks)] for row in held]


def _direct_scatter(
    line: Line, order: Sequence[int], chunks: Sequence[Sequence[Array]], combine: Combine
) -> list[Array]:
    found = []
    for target in range(len(order)):
        total = chunks[target][target]
        for source in range(len(order)):
            if source != target:
                total = combine(total, line.send(order[source], order[target], chunks[source][target]))
        found.append(total)
    return found


def _direct_gather(line: Line, order: Sequence[int], pieces: Sequence[Array]) -> list[list[Array]]:
    everyone = range(len(order))
    return [
        [
            pieces[source] if source == target else line.send(order[source], order[target], pieces[source])
            for source in everyone
        ]
        for target in everyone
    ]


_RING = (_ring_scatter, _ring_gather)
_DIRECT = (_direct_scatter, _direct_gather)
_Scatter = Callable[[Line, Sequence[int], Sequence[Sequence[Array]], Combine], list[Array]]
_Gather = Callable[[Line, Sequence[int], Sequence[Array]], list[list[Array]]]


def _scattered_and_gathered(
    line: Line,
    order: Sequence[int],
    arrays: Sequence[Array],
    combine: Combine,
    scatter: _Scatter,
    gather: _Gather,
) -> list[Array]:
    """A sum in two halves, on n equal chunks of the padded array."""
    if len(order) == 1:
        return list(arrays)
    size = arrays[0].size
    own = scatter(line, order, [_in_chunks(array, len(order)) for array in arrays], combine)
    return [np.concatenate(row)[:size] for row in gather(line, order, own)]


def _in_chunks(array: Array, chunks: int) -> list[Array]:
    return equal_parts(array, chunks, -(-array.size // chunks))


def _tree(line: Line, arrays: Sequence[Array], combine: Combine) -> list[Array]:
    """Up a binomial tree and down again: the parent of a place has its lowest set bit cleared."""
    held = list(arrays)
    for place in range(len(held) - 1, 0, -1):
        parent = place & (place - 1)
        held[parent] = combine(held[parent], line.send(place, parent, held[place]))
    for place in range(1, len(held)):
        held[place] = line.send(place & (place - 1), place, held[place & (place - 1)])
    return held


def _recursive_doubling(line: Line, arrays: Sequence[Array], combine: Combine) -> list[Array]:
    """Whole arrays are swapped with the partner at distance 1, 2, 4, …; only powers of two have partners."""
    held, distance = list(arrays), 1
    while distance < len(held):
        arrived = [line.send(place, place ^ distance, array) for place, array in enumerate(held)]
        held = [combine(array, arrived[place ^ distance]) for place, array in enumerate(held)]
        distance *= 2
    return held


def _by_place(members: Sequence[int], places: Sequence[int]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for member in members:
        found.setdefault(places[member], []).append(member)
    return list(found.values())


def _hierarchical_sum(
    line: Line, arrays: Mapping[int, Array], combine: Combine, levels: Sequence[Sequence[int]]
) -> dict[int, Array]:
    """Scattered inside each place, summed between places, gathered inside."""
    members = list(arrays)
    if not levels or len(members) == 1:
        summed = _scattered_and_gathered(
            line, members, list(arrays.values()), combine, _ring_scatter, _ring_gather
        )
        return dict(zip(members, summed, strict=True))
    size = next(iter(arrays.values())).size
    inside = _by_place(members, levels[0])
    own: dict[int, Array] = {}
    for ranks in inside:
        chunks = [_in_chunks(arrays[rank], len(ranks)) for rank in ranks]
        own |= zip(ranks, _ring_scatter(line, ranks, chunks, combine), strict=True)
    for same_piece in zip(*inside, strict=True):
        own |= _hierarchical_sum(line, {rank: own[rank] for rank in same_piece}, combine, levels[1:])
    found: dict[int, Array] = {}
    for ranks in inside:
        rows = _ring_gather(line, ranks, [own[rank] for rank in ranks])
        found |= {rank: np.concatenate(row)[:size] for rank, row in zip(ranks, rows, strict=True)}
    return found


def _hierarchical_scatter(
    line: Line, chunks: Mapping[int, Mapping[int, Array]], combine: Combine, levels: Sequence[Sequence[int]]
) -> dict[int, Array]:
    """Inside each place a rank collects what is meant for the ranks that stand like it, then passes it on."""
    members = list(chunks)
    if not levels or len(members) == 1:
        rows = [[chunks[source][target] for target in members] for source in members]
        return dict(zip(members, _ring_scatter(line, members, rows, combine), strict=True))
    inside = _by_place(members, levels[0])
    alike = list(zip(*inside, strict=True))
    own: dict[int, Array] = {}
    for ranks in inside:
        rows = [
            [np.concatenate([chunks[rank][target] for target in same]) for same in alike] for rank in ranks
        ]
        own |= zip(ranks, _ring_scatter(line, ranks, rows, combine), strict=True)
    found: dict[int, Array] = {}
    for same in alike:
        parts = {rank: dict(zip(same, np.split(own[rank], len(same)), strict=True)) for rank in same}
        found |= _hierarchical_scatter(line, parts, combine, levels[1:])
    return found
