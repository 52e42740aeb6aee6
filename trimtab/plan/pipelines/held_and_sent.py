"""What a pipeline holds and sends because of the order of its actions, whatever the times.

A rank runs its actions one after another, so the activations that it holds follow from the order alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.plan.pipelines.actions import ActionKind, PipelineActions, RankActions
from trimtab.plan.pipelines.results import output_of, rank_of_each_stage

_RELEASING = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
"""The passes after which the activations of a microbatch are let go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InFlight:
    """The most activations held at once, counted as microbatches of one stage.

    A microbatch counts from the start of its forward pass to the end of its backward pass, or of the weight
    half if that is cut off.

    Args:
        ranks: By rank, over all stages that it holds.
        stages: By stage. A rank's stages need not peak together, so these may add up to more than ``ranks``.
    """

    ranks: tuple[int, ...]
    stages: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfers:
    """Messages of one step between different ranks, by (sender, receiver).

    Args:
        activations: Outputs of a stage, sent to the rank of the next.
        gradients: Their gradients, sent back.
    """

    activations: Mapping[tuple[int, int], int]
    gradients: Mapping[tuple[int, int], int]


def in_flight(actions: PipelineActions) -> InFlight:
    """The most microbatches in flight at once, for each rank and each stage."""
    num_stages = len(rank_of_each_stage(actions))
    peaks = [_peaks_of_stages(order) for order in actions]
    by_stage = {stage: peak for stages in peaks for stage, peak in stages.items()}
    return InFlight(
        ranks=peak_bytes(actions, stage_bytes=(1,) * num_stages),
        stages=tuple(by_stage[stage] for stage in range(num_stages)),
    )


def peak_bytes(actions: PipelineActions, *, stage_bytes: Sequence[int]) -> tuple[int, ...]:
    """For each rank the most bytes of activations held at once.

    ``stage_bytes`` says, by stage, what one microbatch in flight holds.
    """
    return tuple(_peak_of_rank(order, stage_bytes) for order in actions)


def transfers(actions: PipelineActions) -> Transfers:
    """The messages of one step; stages of one rank, as at the turn of a V, hand over without one."""
    rank_of = rank_of_each_stage(actions)
    activations: Counter[tuple[int, int]] = Counter()
    gradients: Counter[tuple[int, int]] = Counter()
    for rank, order in enumerate(actions):
        for action in order:
            result = output_of(action)
            if result is None:
                continue
            peer = rank_of.get(result.stage + (-1 if result.is_gradient else 1), rank)
            if peer != rank:
                (gradients if result.is_gradient else activations)[rank, peer] += 1
    return Transfers(activations=activations, gradients=gradients)


def _peak_of_rank(order: RankActions, stage_bytes: Sequence[int]) -> int:
    held = peak = 0
    for action in order:
        if action.kind is ActionKind.FORWARD:
            held += stage_bytes[action.stage]
            peak = max(peak, held)
        elif action.kind in _RELEASING:
            held -= stage_bytes[action.stage]
    return peak


def _peaks_of_stages(order: RankActions) -> Mapping[int, int]:
    held: Counter[int] = Counter()
    peaks: Counter[int] = Counter()
    for action in order:
        if action.kind is ActionKind.FORWARD:
            held[action.stage] += 1
            peaks[action.stage] = max(peaks[action.stage], held[action.stage])
        elif action.kind in _RELEASING:
            held[action.stage] -= 1
    return peaks
