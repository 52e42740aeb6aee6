"""When to save next: the interval that loses least, from what saves cost and how often things fail."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trimtab.terms import format_seconds

_DAY_S = 86_400.0

PRIOR_PER_NODE_DAY = 0.022
"""Failures of a node in a day that are assumed of a run before it has failed: the mean time between failures of jobs on
one and on 128 nodes was 47.7 days and 7.9 hours (Kokolis et al., HPCA25, arXiv 2410.21680), 0.021 and 0.0237."""
NEEDED_THOUGH_SURVIVED = 0.1
"""Part of the failures that need a checkpoint though peers hold the state: all of them lost at once, spoilt numbers, errors
of a program; a judgement."""
PRIOR_WEIGHT = 2.0
"""How many observed failures the prior counts for."""
HALF_LIFE_S = _DAY_S / 2
HALF_LIFE_PRIORS = 4.0
"""A failure, and time without one, counts half after this long, or after so many of the times that the prior expects
between two failures, if that is longer: what fails once a week is not learnt in a day."""
SHAPE = 0.7
MAX_AGE_FACTOR = 2.0
"""Failures come sooner after a failure than long after: as a Weibull law of this shape has it, within this factor. The
shape is a judgement; that of published times between failures is below 1."""
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
    """How long ago each failure was that needs what this saves; those that peers make good do not count."""
    prior_mttf_s: float = _DAY_S / PRIOR_PER_NODE_DAY
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


def prior_mttf_s(num_nodes: int, *, survives_in_the_step: bool) -> float:
    """Mean seconds between losses that need a checkpoint, assumed of so many nodes before there was one.

    Args:
        num_nodes: That compute.
        survives_in_the_step: Whether peers hold the state of a lost node, so that most losses need none.
    """
    needed = NEEDED_THOUGH_SURVIVED if survives_in_the_step else 1.0
    return _DAY_S / (PRIOR_PER_NODE_DAY * num_nodes * needed)


def mean_hazard_per_s(observed: SaveObservations) -> float:
    """Failures expected per second, from the prior and from the failures seen, older ones counting less.

    Mean of a gamma posterior whose evidence decays with half-life h:
    (a + sum 2^(-age/h)) / (a T + (h / ln 2)(1 - 2^(-t/h))), where the prior counts as ``a`` failures, one per
    T seconds, and t is the time of exposure.
    """
    half_life_s = max(HALF_LIFE_S, HALF_LIFE_PRIORS * observed.prior_mttf_s)
    seen = sum(math.exp2(-age / half_life_s) for age in observed.failure_ages_s)
    exposure_s = half_life_s / math.log(2) * (1 - math.exp2(-observed.running_s / half_life_s))
    return (PRIOR_WEIGHT + seen) / (PRIOR_WEIGHT * observed.prior_mttf_s + exposure_s)


def hazard_per_s(observed: SaveObservations) -> float:
    """Failures expected per second now: more than the mean soon after the last one, or after the start.

    The hazard of a Weibull law of shape k whose mean is that of ``mean_hazard_per_s``, k G (a G)^(k - 1) times the
    mean, with G = Gamma(1 + 1/k) and a the age since the last failure in mean times between failures.
    """
    mean = mean_hazard_per_s(observed)
    age = mean * min(observed.failure_ages_s, default=observed.running_s)
    scale = math.gamma(1 + 1 / SHAPE)
    factor = SHAPE * scale * math.pow(max(age * scale, 1e-9), SHAPE - 1)
    return mean * min(max(factor, 1 / MAX_AGE_FACTOR), MAX_AGE_FACTOR)


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
