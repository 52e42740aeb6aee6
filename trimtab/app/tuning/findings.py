"""What a study has found: the best trial, those that no other beats, and whether the gain is more than noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from trimtab.app.tuning.measures import as_smaller_is_better
from trimtab.app.tuning.studies import TrialRow
from trimtab.policy.trials import TrialState
from trimtab.spec.tunings import TuningObjective


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """The best trial against the job as it is, both run again by turns.

    Args:
        objective: By which.
        pairs: Values of the job as it is and of the best one, in the objective's unit.
    """

    objective: TuningObjective
    pairs: Sequence[tuple[float, float]]

    @property
    def ratios(self) -> list[float]:
        """Of the best one to the job as it is, ascending."""
        return sorted(best / own for own, best in self.pairs)

    @property
    def middle(self) -> float:
        """The median ratio."""
        return median(self.ratios)

    @property
    def is_real(self) -> bool:
        """Whether every pair says the same: by chance alone, three would one time in eight."""
        is_more = self.objective.is_more_better
        return all(ratio > 1 if is_more else ratio < 1 for ratio in self.ratios)


def measured(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """The trials that ran to their end and tell every objective."""
    return [row for row in rows if row.outcome is not None and row.outcome.state is TrialState.DONE]


def best_of(rows: Sequence[TrialRow], objective: TuningObjective) -> TrialRow | None:
    """The best trial by one objective, the first of equals; None if none was measured."""
    return min(measured(rows), key=lambda row: _value(row, objective), default=None)


def front_of(rows: Sequence[TrialRow], objectives: Sequence[TuningObjective]) -> list[TrialRow]:
    """The trials that no other beats: none is as good in every objective and better in one. Best first by the first."""
    found = measured(rows)
    points = [tuple(_value(row, objective) for objective in objectives) for row in found]
    kept = [
        row
        for row, point in zip(found, points, strict=True)
        if not any(_beats(other, point) for other in points)
    ]
    return sorted(kept, key=lambda row: _value(row, objectives[0]))


def _value(row: TrialRow, objective: TuningObjective) -> float:
    assert row.outcome is not None, "it was measured"
    return as_smaller_is_better(objective, row.outcome.values[objective.value])


def _beats(other: Sequence[float], point: Sequence[float]) -> bool:
    return all(left <= right for left, right in zip(other, point, strict=True)) and tuple(other) != tuple(
        point
    )
