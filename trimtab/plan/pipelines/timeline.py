"""One step of a pipeline in time: which rank runs what, when, and when it waits."""

from dataclasses import dataclass

from trimtab.plan.pipelines.actions import Action


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """An action in time, in seconds from the start of the step."""

    action: Action
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Seconds that the action takes."""
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """The bars of every rank, in order of time; bars of one rank never overlap."""

    bars: tuple[tuple[Bar, ...], ...]

    @property
    def makespan_s(self) -> float:
        """Seconds from the start of the step to the end of the last action of any rank."""
        return max((bars[-1].end_s for bars in self.bars if bars), default=0.0)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """For each rank the seconds in which it computes."""
        return tuple(sum(bar.duration_s for bar in bars) for bars in self.bars)

    @property
    def bubble_shares(self) -> tuple[float, ...]:
        """For each rank the part of the step in which it waits, from 0 to 1."""
        makespan_s = self.makespan_s
        if not makespan_s:
            return tuple(0.0 for _ in self.bars)
        return tuple(max(0.0, 1 - busy_s / makespan_s) for busy_s in self.busy_s)

    @property
    def bubble_share(self) -> float:
        """The part of all ranks' time in which they wait, from 0 to 1: the mean of the ranks' shares."""
        shares = self.bubble_shares
        return sum(shares) / len(shares) if shares else 0.0
