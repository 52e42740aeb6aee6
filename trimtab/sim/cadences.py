"""When does a simulated run save? By the policy that real runs ask, or every so many seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab.policy.cadence import SaveObservations, next_save


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a run knows when it asks.

    Args:
        step_s: Seconds of a step.
        stall_s: How long a save holds up training.
        drain_s: From staging until it is durable.
        running_s: Since the start of the run.
        failure_ages_s: How long ago each fault was that a durable checkpoint was needed for.
    """

    step_s: float
    stall_s: float
    drain_s: float
    running_s: float
    failure_ages_s: Sequence[float]


class Cadence(Protocol):
    """Says how long to train before the next save."""

    def interval_s(self, seen: Seen) -> float:
        """Seconds from now to the next save; infinite for never. A pure function."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Every:
    """The same interval whatever happens; infinite for never."""

    seconds: float

    def interval_s(self, seen: Seen) -> float:
        """The interval, and not before the last save is durable."""
        return max(self.seconds, seen.drain_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adaptive:
    """As ``checkpoint.every: adaptive``: the same code decides.

    Args:
        prior_mttf_s: What is assumed of a run that has not failed.
    """

    prior_mttf_s: float

    def interval_s(self, seen: Seen) -> float:
        """What the policy answers to what was seen."""
        observed = SaveObservations(
            last_saved=0,
            step_s=seen.step_s,
            stall_s=seen.stall_s,
            drain_s=seen.drain_s,
            running_s=seen.running_s,
            failure_ages_s=seen.failure_ages_s,
            prior_mttf_s=self.prior_mttf_s,
        )
        due = next_save("adaptive", observed, finished=0)
        assert due.step is not None, "an adaptive cadence always saves"
        return due.step * seen.step_s
