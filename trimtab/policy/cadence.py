"""When to save next: the interval that loses least, from what saves cost and how often things fail."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trimtab.terms import format_seconds

_DAY_S = 86_400.0

PRIOR_MTTF_S = _DAY_S
"""Mean time between failures that is assumed of a run before it has failed; a judgement, not a measurement."""
PRIOR_WEIGHT = 2.0
"""How many observed failures the prior counts for."""
HALF_LIFE_S = _DAY_S / 2
"""A failure, and time without one, counts half after this long."""
MAX_STALL_FRACTION = 0.05
"""Saves may stall training for at most this fraction of its time."""
MAX_INTERVAL_S = 3_600.0
"""However calm a run is, it loses at most about this much."""
STALL_S_PER_BYTE = 0.16e-9
DRAIN_S_PER_BYTE = 2.8e-9
"""Before the first save was measured: the slower end of 22-34 ms of stall and 347-581 ms until durable for a
state of 210 MB, copied into shared memory and written by another process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveObservations:
    """What a run has measured of its steps, its saves and its failures."""

    last_saved: int
    """Step of the newest save, staged or durable; the step that the run began at if there is none."""
    step_s: float
    """Mean seconds of a recent step."""
    stall_s: float
    """How long a save holds up training."""
    drain_s: float
    """From staging until the checkpoint is durable."""
    running_s: float
    """Time that the run has been exposed to failures, over all attempts."""
    failure_ages_s: Sequence[float] = ()
    """How long ago each failure was."""
    prior_mttf_s: float = PRIOR_MTTF_S
    warning: str = ""
    """A reason to expect trouble now, such as a preemption notice; empty if there is none."""

    def __post_init__(self) -> None:
        assert self.step_s > 0
        assert self.prior_mttf_s > 0
        assert min(self.stall_s, self.drain_s, self.running_s) >= 0


@dataclass(frozen=True, kw_only=True, slots=True)
class NextSave:
    """When the next save is due, and why then."""

    step: int | None
    """Save when this step is finished; None: never."""
    reason: str


def expected_save_s(size_bytes: int) -> tuple[float, float]:
    """Stall and drain, in seconds, of a save that was not measured yet."""
    return size_bytes * STALL_S_PER_BYTE, size_bytes * DRAIN_S_PER_BYTE


def hazard_per_s(observed: SaveObservations) -> float:
    """Failures expected per second, from the prior and from the failures seen, older ones counting less.

    Mean of a gamma posterior whose evidence decays with half-life h:
    (a + sum 2^(-age/h)) / (a T + (h / ln 2)(1 - 2^(-t/h))), where the prior counts as ``a`` failures, one per
    T seconds, and t is the time of exposure.
    """
    seen = sum(math.exp2(-age / HALF_LIFE_S) for age in observed.failure_ages_s)
    exposure_s = HALF_LIFE_S / math.log(2) * (1 - math.exp2(-observed.running_s / HALF_LIFE_S))
    return (PRIOR_WEIGHT + seen) / (PRIOR_WEIGHT * observed.prior_mttf_s + exposure_s)


def adaptive_interval_s(observed: SaveObservations) -> float:
    """Seconds between saves that lose least: Young's sqrt(2 C M), within limits.

    Never shorter than a save takes to become durable nor than its stall is worth, and never longer than
    ``MAX_INTERVAL_S`` unless those two demand it.

    Source: Young 1974, A first order approximation to the optimum checkpoint interval, with M = 1 / hazard.
    """
    shortest_s = max(observed.drain_s, observed.stall_s / MAX_STALL_FRACTION)
    youngs_s = math.sqrt(2 * observed.stall_s / hazard_per_s(observed))
    return max(shortest_s, min(youngs_s, MAX_INTERVAL_S))


def next_save(
    every: int | Literal["adaptive", "off"], observed: SaveObservations, *, finished: int
) -> NextSave:
    """The step after which the next save is due.

    Asked after every step; a step that is not later than ``finished`` means now. The save at the end of a
    run is not decided here.

    Args:
        every: As in the job file: a number of steps, ``adaptive`` or ``off``.
        observed: What the run has measured.
        finished: Steps finished so far.
    """
    if every == "off":
        return NextSave(step=None, reason="saving is off")
    if observed.warning and finished > observed.last_saved:
        return NextSave(step=finished, reason=f"now: {observed.warning}")
    if every != "adaptive":
        return NextSave(step=(observed.last_saved // every + 1) * every, reason=f"every {every} steps")
    interval_s = adaptive_interval_s(observed)
    num_steps = max(1, math.ceil(interval_s / observed.step_s))
    return NextSave(step=observed.last_saved + num_steps, reason=_explain(interval_s, num_steps, observed))


def _explain(interval_s: float, num_steps: int, observed: SaveObservations) -> str:
    num_failures = len(observed.failure_ages_s)
    return (
        f"every {format_seconds(interval_s)} ({num_steps} steps): a save stalls "
        f"{format_seconds(observed.stall_s)} and is durable after {format_seconds(observed.drain_s)}; a failure "
        f"is expected every {format_seconds(1 / hazard_per_s(observed))} "
        f"({num_failures} seen in {format_seconds(observed.running_s)}, "
        f"{format_seconds(observed.prior_mttf_s)} assumed before)"
    )
