"""Which layers each stage holds.

Stages hold whole layers, in order and without gaps. The heaviest stage decides how fast a pipeline runs, so it
is made as light as can be; among the ways to do that, the one whose stages differ least (the smallest sum of
squares) is taken, and of equals the one whose earlier stages are heavier. All of it is exact.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from math import lcm
from operator import itemgetter

from trimtab.plan.pipelines.errors import LayersError


class Balance(StrEnum):
    """What a stage's load is, by the name that formulas use."""

    LAYERS = "layers"
    PARAMS = "params"
    TIME = "time"


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """The load of each part of a network: its parameters, or the seconds that it takes.

    Args:
        layers: By layer, none negative.
        embedding: Of what the first stage holds besides layers.
        head: Of what the last stage holds besides layers.
    """

    layers: tuple[float, ...]
    embedding: float = 0
    head: float = 0


def stages_of_layers(
    num_layers: int,
    num_stages: int,
    *,
    balance: Balance = Balance.LAYERS,
    weights: LayerWeights | None = None,
    placed: Mapping[int, int] | None = None,
) -> tuple[int, ...]:
    """The stage of each layer: every stage has at least one, and they follow each other in order.

    By layers, sizes differ by at most one; by parameters or time, the load of the heaviest stage is the
    smallest possible.

    Args:
        num_layers: Layers of the network.
        num_stages: Stages of the pipeline.
        balance: What to balance; anything but layers needs ``weights``.
        weights: The load of each part; layers count 1 each, and embedding and head 0, if balanced by layers.
        placed: Layers that the user has put on a stage by hand; the others are balanced around them.

    >>> stages_of_layers(7, 3)
    (0, 0, 0, 1, 1, 2, 2)
    >>> stages_of_layers(7, 3, placed={1: 1})
    (0, 1, 1, 1, 2, 2, 2)
    >>> stages_of_layers(6, 3, balance=Balance.PARAMS, weights=LayerWeights(layers=(1,) * 6, head=2))
    (0, 0, 0, 1, 1, 2)

    Raises: LayersError if there are fewer layers than stages, or placements leave a stage empty, out of order
        or out of range; the message names the layer.
    """
    if num_layers < num_stages:
        raise LayersError(
            f"{num_layers} layers cannot fill {num_stages} stages: each stage holds at least one layer; "
            f"use at most {num_layers} stages"
        )
    ends = _possible_ends(num_layers, num_stages, placed or {})
    if balance is Balance.LAYERS:
        weights = LayerWeights(layers=(1,) * num_layers)
    assert weights is not None, "weights for every balance but by layers"
    assert len(weights.layers) == num_layers
    loads = _Loads.of(weights, num_stages)
    chosen = _most_even_ends(ends, loads, limit=_lightest_heaviest(ends, loads))
    sizes = (end - start for start, end in zip((0, *chosen), chosen, strict=False))
    return tuple(stage for stage, size in enumerate(sizes) for _ in range(size))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ends:
    """Where a stage may end, counted in layers from the first: from ``first`` to ``last``, both possible."""

    first: int
    last: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Loads:
    """Loads as integers, so that sums have no rounding and equal loads are equal.

    Args:
        until: The load of the layers before each layer, and of all.
        extra: By stage, what it holds besides layers.
    """

    until: tuple[int, ...]
    extra: tuple[int, ...]

    @classmethod
    def of(cls, weights: LayerWeights, num_stages: int) -> "_Loads":
        """Weights brought to their common denominator: floats have one, a power of two."""
        ratios = [weight.as_integer_ratio() for weight in (*weights.layers, weights.embedding, weights.head)]
        denominator = lcm(*(below for _, below in ratios))
        *layers, embedding, head = (above * (denominator // below) for above, below in ratios)
        assert min(*layers, embedding, head) >= 0
        extra = [0] * num_stages
        extra[0] += embedding
        extra[-1] += head
        return cls(until=tuple(accumulate(layers, initial=0)), extra=tuple(extra))

    def of_stage(self, stage: int, start: int, end: int) -> int:
        """The load of a stage that holds the layers from ``start`` to before ``end``."""
        return self.until[end] - self.until[start] + self.extra[stage]

    def furthest_end(self, stage: int, start: int, limit: int) -> int:
        """The last end with which a stage stays within a limit; before ``start`` if even none fits."""
        return bisect_right(self.until, limit - self.extra[stage] + self.until[start]) - 1


def _possible_ends(num_layers: int, num_stages: int, placed: Mapping[int, int]) -> tuple[_Ends, ...]:
    """The ends of each stage that leave a layer for every other stage and keep what is placed in its place."""
    _check_places(num_layers, num_stages, placed)
    fixed = [(-1, -1), *placed.items(), (num_layers - 1, num_stages - 1), (num_layers, num_stages)]
    return tuple(
        _Ends(
            first=max(layer + 1 + number - stage for layer, stage in fixed if stage <= number),
            last=min(layer - (stage - 1 - number) for layer, stage in fixed if stage > number),
        )
        for number in range(num_stages)
    )


def _check_places(num_layers: int, num_stages: int, placed: Mapping[int, int]) -> None:
    for layer, stage in sorted(placed.items()):
        if not 0 <= layer < num_layers:
            raise LayersError(f"layer {layer} is placed on stage {stage}; layers are 0 to {num_layers - 1}")
        if not 0 <= stage < num_stages:
            raise LayersError(f"layer {layer} is placed on stage {stage}; stages are 0 to {num_stages - 1}")
    fixed = [(-1, -1), *sorted(placed.items()), (num_layers, num_stages)]
    for (layer, stage), (next_layer, next_stage) in pairwise(fixed):
        if next_stage < stage:
            raise LayersError(
                f"layer {next_layer} is placed on stage {next_stage}, but layer {layer} before it on stage {stage}; "
                "stages follow each other in the order of layers"
            )
        if next_stage - stage > next_layer - layer:
            raise LayersError(_too_few_between(layer, stage, next_layer, next_stage, num_stages))


def _too_few_between(layer: int, stage: int, next_layer: int, next_stage: int, num_stages: int) -> str:
    if layer < 0:
        place = f"layer {next_layer} is placed on stage {next_stage}: before it"
    elif next_stage == num_stages:
        place = f"layer {layer} is placed on stage {stage}: after it"
    else:
        place = f"layer {layer} is placed on stage {stage} and layer {next_layer} on stage {next_stage}: between them"
    return (
        f"{place}, layers left: {next_layer - layer - 1}, stages to fill: {next_stage - stage - 1}; "
        "each stage holds at least one layer"
    )


def _lightest_heaviest(ends: Sequence[_Ends], loads: _Loads) -> int:
    """The smallest load that no stage need exceed, by bisection: each guess is tried by filling stages up."""
    low, high = -1, sum(loads.extra) + loads.until[-1]
    while high - low > 1:
        middle = (low + high) // 2
        if _can_stay_within(middle, ends, loads):
            high = middle
        else:
            low = middle
    return high


def _can_stay_within(limit: int, ends: Sequence[_Ends], loads: _Loads) -> bool:
    """Whether stages that are filled as far as the limit and the placements let them reach the last layer."""
    start = 0
    for stage, possible in enumerate(ends):
        end = min(possible.last, loads.furthest_end(stage, start, limit))
        if end < possible.first or end <= start:
            return False
        start = end
    return True


def _most_even_ends(ends: Sequence[_Ends], loads: _Loads, *, limit: int) -> list[int]:
    """The end of each stage with the smallest sum of squared loads, none above the limit.

    From the last stage back: for every layer that a stage may start at, its best end and the sum from there on.
    """
    sums = {len(loads.until) - 1: 0}
    best_ends: list[dict[int, int]] = []
    for stage in reversed(range(len(ends))):
        starts = range(ends[stage - 1].first, ends[stage - 1].last + 1) if stage else range(1)
        found = {start: _best_end(stage, start, ends[stage], loads, limit, sums) for start in starts}
        best = {start: choice for start, choice in found.items() if choice is not None}
        sums = {start: total for start, (total, _) in best.items()}
        best_ends.append({start: end for start, (_, end) in best.items()})
    return _followed(best_ends)


def _best_end(
    stage: int, start: int, possible: _Ends, loads: _Loads, limit: int, sums: Mapping[int, int]
) -> tuple[int, int] | None:
    """The smallest sum of squares from a stage on and the stage's end, the later of equals; None if none fits.

    ``sums`` has the sum of the later stages by the layer that they start at.
    """
    last = min(possible.last, loads.furthest_end(stage, start, limit))
    choices = (
        (loads.of_stage(stage, start, end) ** 2 + sums[end], end)
        for end in range(last, max(start, possible.first - 1), -1)
        if end in sums
    )
    return min(choices, key=itemgetter(0), default=None)


def _followed(best_ends: Sequence[Mapping[int, int]]) -> list[int]:
    """The ends met when each stage starts where the one before ended; ``best_ends`` has the last stage first."""
    chosen, start = [], 0
    for end_from in reversed(best_ends):
        start = end_from[start]
        chosen.append(start)
    return chosen
