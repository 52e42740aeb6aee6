"""What a trial's run is worth, read from what it wrote: rates over the steps behind the first ones, losses, peaks, dollars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from trimtab.ledger import EventKind, Metric, Point, RunRecords, default_series, run_report
from trimtab.spec.tunings import TuningObjective

_LAST_SHARE = 0.1
"""Of the steps, over which a training loss is taken: one step's loss is mostly its batch."""

_BY_STEP = frozenset(
    {TuningObjective.TOKENS_PER_S, TuningObjective.USD_PER_MILLION_TOKENS, TuningObjective.LOSS}
)
"""What can be told before the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a trial's records are read with.

    Args:
        skip: Steps at the beginning that no rate is taken from.
        devices: Of the trial.
        usd_per_device_hour: None without a price.
    """

    skip: int
    devices: int
    usd_per_device_hour: float | None


def value_of(objective: TuningObjective, records: RunRecords, facts: Facts) -> float | None:
    """What a finished run is worth by an objective, in its own unit; None if the run does not tell."""
    match objective:
        case TuningObjective.EVAL_LOSS:
            return run_report(records, directory="").eval_loss
        case TuningObjective.PEAK_BYTES:
            return _peak_bytes(records)
        case TuningObjective.LOSS if _ends_in_a_gap(records):
            return None
        case _:
            curve = curve_of(objective, records, facts)
            return None if not curve else _sign(objective) * curve[max(curve)]


def curve_of(objective: TuningObjective, records: RunRecords, facts: Facts) -> dict[int, float]:
    """An objective by step, the smaller the better; empty if steps do not tell it."""
    if objective not in _BY_STEP:
        return {}
    if objective is TuningObjective.LOSS:
        losses = [point for point in default_series(records, Metric.LOSS) if point.value is not None]
        return {losses[number].step: _last_mean(losses[: number + 1]) for number in range(len(losses))}
    rates = _rates(default_series(records, Metric.TOKENS), facts.skip)
    if objective is TuningObjective.TOKENS_PER_S:
        return {step: -rate for step, rate in rates.items()}
    if facts.usd_per_device_hour is None:
        return {}
    usd_per_s = facts.devices * facts.usd_per_device_hour / 3600
    return {step: usd_per_s / rate * 1e6 for step, rate in rates.items()}


def as_smaller_is_better(objective: TuningObjective, value: float) -> float:
    """A value as the search takes it."""
    return _sign(objective) * value


def _ends_in_a_gap(records: RunRecords) -> bool:
    """Whether the last loss was not finite: what came before it is not what the run has come to."""
    losses = default_series(records, Metric.LOSS)
    return bool(losses) and losses[-1].value is None


def _sign(objective: TuningObjective) -> int:
    return -1 if objective.is_more_better else 1


def _rates(commits: Sequence[Point], skip: int) -> Mapping[int, float]:
    """Tokens a second from the last of the first steps to each one after it."""
    if len(commits) <= skip + 1:
        return {}
    start = commits[max(skip, 1) - 1]
    rates, tokens = {}, 0
    for commit in commits[max(skip, 1) :]:
        tokens += int(commit.value or 0)
        rates[commit.step] = tokens / (commit.t_ns - start.t_ns) * 1e9
    return rates


def _last_mean(losses: Sequence[Point]) -> float:
    count = max(1, round(_LAST_SHARE * len(losses)))
    return fmean(point.value for point in losses[-count:] if point.value is not None)


def _peak_bytes(records: RunRecords) -> float | None:
    peaks = [
        event.integer("peak_bytes")
        for journal in records.ranks.values()
        for event in journal
        if event.kind == EventKind.MEMORY
    ]
    return float(max(peaks)) if peaks else None
