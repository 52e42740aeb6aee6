"""Why a pipeline stands still: the action that waits, and what it waits for."""

from collections.abc import Sequence

from trimtab.plan.pipelines.actions import Action, PipelineActions
from trimtab.plan.pipelines.errors import DeadlockError
from trimtab.plan.pipelines.results import Result, inputs_of, output_of


def deadlock_of(actions: PipelineActions, positions: Sequence[int], *, num_stages: int) -> DeadlockError:
    """The error that names the action at fault.

    ``positions`` counts, for each rank, the actions that have run; at least one rank has not ended, and none
    can go on. A result that no rank computes is blamed first; else the circle of ranks is told.
    """
    waits = _waits(actions, positions, num_stages)
    rank_with = {output_of(action): rank for rank, order in enumerate(actions) for action in order}
    for rank, (action, missing) in waits.items():
        if missing not in rank_with:
            return DeadlockError(
                f"rank {rank} waits at its action {positions[rank]}, {action}, for {_named(missing)}, "
                "which no rank computes"
            )
    circle = _circle({rank: rank_with[missing] for rank, (_, missing) in waits.items()})
    told = ", ".join(f"rank {rank} at {waits[rank][0]} for {_named(waits[rank][1])}" for rank in circle)
    return DeadlockError(f"ranks wait for each other: {told}")


def _waits(
    actions: PipelineActions, positions: Sequence[int], num_stages: int
) -> dict[int, tuple[Action, Result]]:
    """For each rank that has not ended: its next action, and the first input that is missing."""
    computed = {
        output_of(action)
        for order, position in zip(actions, positions, strict=True)
        for action in order[:position]
    }
    return {
        rank: (action, missing)
        for rank, (order, position) in enumerate(zip(actions, positions, strict=True))
        for action in order[position : position + 1]
        for missing in [next(r for r in inputs_of(action, num_stages) if r not in computed)]
    }


def _circle(waits_for: dict[int, int]) -> list[int]:
    """The ranks of a circle: each waits for the next, the last for the first."""
    seen: list[int] = []
    rank = next(iter(waits_for))
    while rank not in seen:
        seen.append(rank)
        rank = waits_for[rank]
    return seen[seen.index(rank) :]


def _named(result: Result) -> str:
    what = "the input gradient" if result.is_gradient else "the output"
    return f"{what} of stage {result.stage} on microbatch {result.microbatch}"
