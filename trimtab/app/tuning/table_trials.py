"""Trials from a table of runs that were made before: the interface of real ones, at the price of a look."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.app.tuning.studies import Outcome
from trimtab.cost.search.tuning import Curve, Value
from trimtab.policy.trials import TrialState


@dataclass(slots=True, kw_only=True)
class TableTrials:
    """Trials looked up; what is not in the table is refused.

    Args:
        rows: Values of the knobs, and what each objective was.
        devices: That a trial takes.
        seconds: That a trial takes, as it is told; nobody waits for them.
        delay_s: That a trial really takes.
    """

    rows: Sequence[tuple[Mapping[str, Value], Mapping[str, float]]]
    devices: int = 1
    seconds: float = 0.0
    delay_s: float = 0.0
    _found: dict[tuple[tuple[str, Value], ...], Mapping[str, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._found = {_key(params): values for params, values in self.rows}

    def refusal(self, params: Mapping[str, Value]) -> str:
        """As the interface says."""
        return "" if _key(params) in self._found else "the table has no such run"

    def devices_of(self, params: Mapping[str, Value]) -> int:
        """As the interface says."""
        return self.devices

    def make(
        self, number: int, params: Mapping[str, Value], *, is_behind: Callable[[Curve], bool]
    ) -> Outcome:
        """As the interface says."""
        time.sleep(self.delay_s)
        return Outcome(state=TrialState.DONE, values=self._found[_key(params)], seconds=self.seconds)

    def is_at_work(self, number: int) -> bool:
        """As the interface says: nobody can tell."""
        return False


def _key(params: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(params.items()))
