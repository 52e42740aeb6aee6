"""Who makes trials: real runs, a table of runs that were made before, and whatever else keeps to this."""

from collections.abc import Callable, Mapping
from typing import Protocol

from trimtab.app.tuning.studies import Outcome
from trimtab.cost.search.tuning import Curve, Value


class TrialInterruptedError(Exception):
    """The worker was told to end; the trial goes back to those that wait.

    Args:
        number: Of the signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"signal {number}")


class TrialMaker(Protocol):
    """Makes trials, for real or from a table. Called by one thread of a worker."""

    def refusal(self, params: Mapping[str, Value]) -> str:
        """Why a trial cannot be made; empty if it can. Costs nothing but a moment, and starts nothing."""
        ...

    def devices_of(self, params: Mapping[str, Value]) -> int:
        """How many it takes, all at once."""
        ...

    def make(
        self, number: int, params: Mapping[str, Value], *, is_behind: Callable[[Curve], bool]
    ) -> Outcome:
        """Make a trial to its end, or until it is behind.

        Args:
            number: Of the trial.
            params: Its values.
            is_behind: Says of the first objective by step, the smaller the better, whether it is not worth the rest.

        Raises: TrialInterruptedError if this process was told to end.
        """
        ...

    def is_at_work(self, number: int) -> bool:
        """Whether some process still makes this trial, whatever became of its worker."""
        ...
