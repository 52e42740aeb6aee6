"""What to do about a step whose loss or gradient norm is far from its neighbours'.

A ladder: name it, do not trust the newest checkpoints, pin the last one that is trusted; then leave the step's samples
out, or go back to the trusted checkpoint first. Which rung, the job says; the numbers below say what a spike is.
"""

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from trimtab.spec import SpikeAnswer

MIN_STEPS = 16
"""Steps without which nothing is a spike: a run begins with steep falls."""
DEVIATION = 1.4826
"""Median absolute deviations in a standard deviation of normal numbers."""
MAX_NEAR = 3
"""Spikes within a window that are gone back from; after that going back does not help, and would be paid for again."""
LEAST_DEVIATION = 0.02
"""Part of the median that a deviation counts as at least: after a calm stretch noise is no spike."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeRules:
    """What a spike is, and what is done about it.

    Args:
        answer: The rung.
        loss, grad_norm: Deviations above the median of the window at which a step is a spike.
        window: Newest applied steps that are looked at.
        suspect: Checkpoints of so many steps before a spike are not trusted: what made it may be in them.
    """

    answer: SpikeAnswer = SpikeAnswer.MARK
    loss: float = 4.0
    grad_norm: float = 6.0
    window: int = 64
    suspect: int = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeLimits:
    """Loss and gradient norm above which a step is a spike; infinite while too few steps are known."""

    loss: float = math.inf
    grad_norm: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeDecision:
    """What is done about a spike.

    Args:
        suspect: Checkpoints that are not trusted any more.
        pinned: The newest trusted one, which stays; None if there is none.
        is_skipped: Whether the step's samples are left out.
        goes_back: Whether all go back to ``pinned`` first, or to the beginning.
        reason: For people.
    """

    suspect: tuple[int, ...]
    pinned: int | None
    is_skipped: bool
    goes_back: bool
    reason: str


def spike_limits(losses: Sequence[float], grad_norms: Sequence[float], rules: SpikeRules) -> SpikeLimits:
    """The limits that hold for the next step.

    Args:
        losses: Of the steps that were applied, oldest first.
        grad_norms: Of the same.
        rules: Of the job.
    """
    if rules.answer is SpikeAnswer.OFF:
        return SpikeLimits()
    return SpikeLimits(
        loss=_limit(losses[-rules.window :], rules.loss),
        grad_norm=_limit(grad_norms[-rules.window :], rules.grad_norm),
    )


def spike_reason(loss: float, grad_norm: float, limits: SpikeLimits) -> str:
    """Why a step is a spike; empty if it is none.

    >>> spike_reason(9.5, 1.0, SpikeLimits(loss=4.0))
    'the loss is 9.5, above 4'
    """
    found = [
        f"the {name} is {value:.4g}, above {limit:.4g}"
        for name, value, limit in (
            ("loss", loss, limits.loss),
            ("gradient norm", grad_norm, limits.grad_norm),
        )
        if value > limit
    ]
    return " and ".join(found)


def decide_spike(
    step: int,
    reason: str,
    checkpoints: Collection[int],
    rules: SpikeRules,
    *,
    gone_back_from: Collection[int] = (),
) -> SpikeDecision:
    """What is done about a spike in a step.

    Args:
        step: Its number; a checkpoint of step n holds what n steps made, so it is from before if n is at most ``step``.
        reason: Why it is a spike.
        checkpoints: Steps of the complete ones.
        rules: Of the job.
        gone_back_from: Steps of earlier spikes that all went back from.
    """
    trusted = [saved for saved in checkpoints if saved <= step - rules.suspect]
    suspect = tuple(sorted(saved for saved in checkpoints if saved > step - rules.suspect))
    pinned = max(trusted, default=None)
    near = [spike for spike in gone_back_from if abs(step - spike) < rules.window]
    goes_back = rules.answer is SpikeAnswer.ROLLBACK and len(near) < MAX_NEAR
    is_skipped = rules.answer in (SpikeAnswer.SKIP, SpikeAnswer.ROLLBACK)
    words = [f"step {step} is a spike: {reason}"]
    if suspect:
        words.append(f"checkpoints {', '.join(map(str, suspect))} are suspect")
    words.append(
        f"checkpoint {pinned} is pinned" if pinned is not None else "none from before is there to pin"
    )
    if goes_back:
        words.append(f"all go back to {'it' if pinned is not None else 'the beginning'}")
    elif rules.answer is SpikeAnswer.ROLLBACK:
        words.append(f"nobody goes back, for {len(near)} spikes near it were gone back from")
    words.append("its samples are left out" if is_skipped else "it is applied")
    return SpikeDecision(
        suspect=suspect, pinned=pinned, is_skipped=is_skipped, goes_back=goes_back, reason="; ".join(words)
    )


def _limit(values: Sequence[float], deviations: float) -> float:
    """Median plus so many robust deviations."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < MIN_STEPS:
        return math.inf
    median = statistics.median(known)
    spread = DEVIATION * statistics.median(abs(value - median) for value in known)
    return median + deviations * max(spread, LEAST_DEVIATION * abs(median))
