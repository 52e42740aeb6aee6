"""Which trial of a tuning should a worker take up now: leases, the devices at hand, and what may still be spent.

Workers are equal and come and go. A trial belongs to whoever holds its lease; one whose holder is gone is made again
with the same values. Every move is decided in one transaction on all trials, so that nobody holds devices while it waits
for more of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

MOST_ATTEMPTS = 3
"""At a trial whose holders die, before it counts as failed: what kills three workers may be the trial."""


class TrialState(StrEnum):
    """Where a trial stands."""

    WAITING = "waiting"
    """Its holder is gone; the next worker takes it up."""
    RUNNING = "running"
    DONE = "done"
    CUT_SHORT = "cut short"
    """It was behind the others."""
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"


ENDED = frozenset({TrialState.DONE, TrialState.CUT_SHORT, TrialState.OUT_OF_MEMORY, TrialState.FAILED})
"""What counts against the number of trials."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A trial, as far as these rules care.

    Args:
        number: From 0.
        state: Where it stands.
        devices: That it takes, all at once.
        owner: Who holds its lease; None if nobody does.
        lease_until_s: When the lease ends, by the clock of ``now_s``.
        attempts: Times that somebody took it up.
        spent_s: Of all its attempts.
        spent_usd: Of all its attempts.
    """

    number: int
    state: TrialState
    devices: int
    owner: str | None = None
    lease_until_s: float = 0.0
    attempts: int = 0
    spent_s: float = 0.0
    spent_usd: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialBudget:
    """What a tuning may spend.

    Args:
        trials: That may end, whatever came of them.
        seconds: Of trials, added up; None for any.
        usd: Of trials, added up; None for any.
        devices: At hand for trials at one time.
        reserved: Runs of a trial's length for which time and dollars are kept back, to confirm what was found.
    """

    trials: int
    seconds: float | None = None
    usd: float | None = None
    devices: int
    reserved: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Take:
    """Make this trial again, which nobody holds any more."""

    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """Make a new trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Look again later."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """Nothing is left to do."""

    reason: str


Move = Take | Ask | Wait | Finish


def lost_trials(
    trials: Sequence[Trial],
    *,
    gone: frozenset[str] = frozenset(),
    at_work: frozenset[int] = frozenset(),
    now_s: float,
) -> list[Trial]:
    """The running trials that nobody works at any more, each as it is from now on: waiting, or failed for good.

    Args:
        trials: All of them.
        gone: Owners that are known to be dead, before their lease ends.
        at_work: Numbers of trials whose processes are seen to live: they hold devices, whatever became of their owner.
        now_s: The time, by the clock of the leases.
    """
    return [
        _let_go(trial)
        for trial in trials
        if trial.state is TrialState.RUNNING
        and trial.number not in at_work
        and (trial.owner in gone or trial.lease_until_s < now_s)
    ]


def next_move(trials: Sequence[Trial], budget: TrialBudget, *, devices: int, is_seen: bool = False) -> Move:
    """What a worker should do now.

    Args:
        trials: All of them, the lost ones let go.
        budget: What may be spent.
        devices: That a new trial takes.
        is_seen: Whether there is no other trial to make.
    """
    running = [trial for trial in trials if trial.state is TrialState.RUNNING]
    waiting = [trial for trial in trials if trial.state is TrialState.WAITING]
    free = budget.devices - sum(trial.devices for trial in running)
    if over := _overspent(trials, budget):
        return Wait(reason=f"{over}; {len(running)} still running") if running else Finish(reason=over)
    for trial in waiting:
        if trial.devices <= free:
            return Take(number=trial.number)
    if waiting:
        return _short_of_devices(waiting[0].devices, free, budget, running)
    if len(trials) >= budget.trials:
        said = f"the budget of {budget.trials} trials"
        return Wait(reason=f"{said}; {len(running)} still running") if running else Finish(reason=said)
    if is_seen:
        said = "every trial that can be made was made"
        return Wait(reason=f"{said}; {len(running)} still running") if running else Finish(reason=said)
    return Ask() if devices <= free else _short_of_devices(devices, free, budget, running)


def may_end(trial: Trial) -> bool:
    """Whether what a worker says of a trial still counts: it does until somebody has ended it.

    A late word of a worker that lost its lease is as good as any: the trial was really made.
    """
    return trial.state not in ENDED


def _let_go(trial: Trial) -> Trial:
    state = TrialState.FAILED if trial.attempts >= MOST_ATTEMPTS else TrialState.WAITING
    return Trial(
        number=trial.number,
        state=state,
        devices=trial.devices,
        attempts=trial.attempts,
        spent_s=trial.spent_s,
        spent_usd=trial.spent_usd,
    )


def _short_of_devices(wanted: int, free: int, budget: TrialBudget, running: Sequence[Trial]) -> Wait | Finish:
    if not running:
        return Finish(reason=f"a trial takes {wanted} devices, and there are {budget.devices}")
    return Wait(reason=f"a trial takes {wanted} devices, and {max(free, 0)} of {budget.devices} are free")


def _overspent(trials: Sequence[Trial], budget: TrialBudget) -> str:
    """Which limit another trial would exceed, with what is kept back, if all took what the median has; empty if none."""
    ended = [trial for trial in trials if trial.state in ENDED]
    under_way = sum(trial.state is TrialState.RUNNING for trial in trials)
    seconds = median(trial.spent_s for trial in ended) if ended else 0.0
    usd = median(trial.spent_usd for trial in ended) if ended else 0.0
    spent_s, spent_usd = (
        sum(trial.spent_s for trial in trials) + under_way * seconds,
        sum(trial.spent_usd for trial in trials) + under_way * usd,
    )
    wanted = 1 + budget.reserved
    if budget.seconds is not None and spent_s + wanted * seconds > budget.seconds:
        return (
            f"the budget of {budget.seconds / 60:g} minutes of trials, of which {spent_s / 60:.1f} are spent"
        )
    if budget.usd is not None and spent_usd + wanted * usd > budget.usd:
        return f"the budget of ${budget.usd:g}, of which ${spent_usd:.4f} are spent"
    return ""
