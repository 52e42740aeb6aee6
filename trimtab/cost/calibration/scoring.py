"""Predictions of runs that took no part in their own calibration, set beside what was measured.

Every source is a stack of its own. What constants are expected to be in it is learned from the other sources only; then
it is calibrated on some of its rows and scored on the rest.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

import numpy as np
from scipy.stats import kendalltau

from trimtab.cost.calibration.calibrated import (
    calibrate,
    largest_bytes,
    reported_bytes,
    step_seconds,
)
from trimtab.cost.calibration.fitting import Belief, fit, learn
from trimtab.cost.calibration.residuals import features_of, resemblance
from trimtab.cost.calibration.rows import MeasuredRun, cases_of
from trimtab.cost.closed_form import MEMORY_CONSTANTS, TIME_CONSTANTS, Floats

FOLDS = 10
"""Parts of a source, each predicted from the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """One run and what was predicted of it.

    Args:
        is_calibration: Whether the source was calibrated on this run: nothing is predicted then.
        step_s, low_s, high_s: Predicted, with the interval that holds nine of ten; None where no plan is known.
        reported_bytes: Predicted of the rank whose memory is reported.
        largest_bytes: Predicted of the rank that needs most.
    """

    run: MeasuredRun
    is_calibration: bool = False
    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    reported_bytes: float | None = None
    largest_bytes: float | None = None

    @property
    def time_error(self) -> float | None:
        """Predicted over measured, less 1; None where there is no time to score."""
        if self.step_s is None or self.run.step_s is None or self.run.problem:
            return None
        return self.step_s / self.run.step_s - 1

    @property
    def memory_error(self) -> float | None:
        """Predicted over reported memory, less 1; None where none is reported."""
        if self.reported_bytes is None or self.run.peak_bytes is None:
            return None
        return self.reported_bytes / self.run.peak_bytes - 1

    @property
    def is_covered(self) -> bool | None:
        """Whether the measured time lies in its interval; None where there is no time to score."""
        if self.time_error is None or self.low_s is None or self.high_s is None or self.run.step_s is None:
            return None
        return self.low_s <= self.run.step_s <= self.high_s

    @property
    def fits(self) -> bool | None:
        """Whether it is predicted to fit; None where no plan is known."""
        return None if self.largest_bytes is None else self.largest_bytes <= self.run.capacity_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class StackFits:
    """Constants of every source, each fitted to all of its rows: what the next one is expected to be."""

    time: Mapping[str, Floats]
    memory: Mapping[str, Floats]

    def time_belief(self, without: str = "") -> Belief:
        """Of time constants, from all sources but one."""
        return _belief(Belief.before(TIME_CONSTANTS), self.time, without)

    def memory_belief(self, without: str = "") -> Belief:
        """Of memory constants, from all sources but one."""
        return _belief(Belief.before(MEMORY_CONSTANTS), self.memory, without)


def published_fits() -> StackFits:
    """Of the published runs that come with Trimtab, as ``bench/planner.py --write-constants`` wrote them."""
    found: dict[str, dict[str, Floats]] = {"time": {}, "memory": {}}
    for row in csv.reader(_fits_file().read_text(encoding="utf-8").splitlines()[1:]):
        found[row[0]][row[1]] = np.log([float(value) for value in row[2:] if value])
    return StackFits(**found)


def written_fits(fits: StackFits) -> str:
    """As the text of a file that ``published_fits`` reads: a line a stack, constants in order."""
    width = max(len(TIME_CONSTANTS), len(MEMORY_CONSTANTS))
    lines = [["model", "source", *(f"constant {number}" for number in range(width))]]
    for name, stacks in (("time", fits.time), ("memory", fits.memory)):
        for source, logarithms in stacks.items():
            values = [f"{value:.6g}" for value in np.exp(logarithms)]
            lines.append([name, source, *values, *[""] * (width - len(values))])
    return "".join(",".join(line) + "\n" for line in lines)


def _fits_file() -> Traversable:
    return resources.files("trimtab.cost").joinpath("data", "stack_constants.csv")


def stack_fits(runs: Sequence[MeasuredRun]) -> StackFits:
    """Of the sources of runs."""
    time, memory = {}, {}
    for source, members in by_source(runs).items():
        timed, weighed = _timed(members), _weighed(members)
        if timed:
            time[source] = fit(
                step_seconds, cases_of(timed), _seconds(timed), Belief.before(TIME_CONSTANTS)
            ).logarithms
        if weighed:
            memory[source] = fit(
                reported_bytes, cases_of(weighed), _bytes(weighed), Belief.before(MEMORY_CONSTANTS)
            ).logarithms
    return StackFits(time=time, memory=memory)


def held_out(runs: Sequence[MeasuredRun], fits: StackFits, *, seed: int = 0) -> list[Scored]:
    """Every run, predicted from runs of its source with other plans, in turn; of a single plan, from other sources alone.

    Args:
        runs: All of them, of any sources.
        fits: Of sources, of which each one's own is left out.
        seed: Of which plans stand together in one of FOLDS parts.
    """
    found = []
    generator = np.random.default_rng(seed)
    for members in by_source(runs).values():
        plans = [tuple(run.columns.values()) or run.row_id for run in members]
        # One plan measured twice stays in one part. Plans with a time, with memory, and others are dealt out apart, so
        # that each part gets its share of each.
        kinds = {
            plan: (run.problem == "", run.peak_bytes is not None)
            for plan, run in zip(plans, members, strict=True)
        }
        part_of = {}
        for kind in sorted(set(kinds.values())):
            alike = [plan for plan, own in kinds.items() if own == kind]
            for place, index in enumerate(generator.permutation(len(alike))):
                part_of[alike[index]] = place % FOLDS
        parts = [part_of[plan] for plan in plans]
        for part in range(FOLDS):
            found += _score(
                [run for run, own in zip(members, parts, strict=True) if own != part],
                [run for run, own in zip(members, parts, strict=True) if own == part],
                fits,
            )
    return found


def score_after(runs: Sequence[MeasuredRun], fits: StackFits, *, rows: int) -> list[Scored]:
    """Every source calibrated on so many of its rows, the rest predicted.

    Which ones are taken is decided by their plans, never by what was measured: each next one is the one that resembles
    those already taken least.
    """
    found = []
    for members in by_source(runs).values():
        taken = _unlike([run for run in members if not run.problem], rows)
        weighed = _unlike([run for run in members if run.peak_bytes is not None and run.columns], rows)
        ids = {run.row_id for run in (*taken, *weighed)}
        found += [Scored(run=run, is_calibration=True) for run in members if run.row_id in ids]
        found += _score(
            [run for run in members if run.row_id in ids],
            [run for run in members if run.row_id not in ids],
            fits,
        )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedGroup:
    """Strategies for the same network, devices and batch.

    Args:
        size: How many.
        regret: The time of the one predicted to be best over the best, less 1.
        tau: Kendall's, of predicted and measured order; None where all measured the same.
    """

    source: str
    size: int
    regret: float
    tau: float | None


def ranked_groups(scored: Sequence[Scored], *, at_least: int = 4) -> list[RankedGroup]:
    """Of all groups of at least so many runs with a time."""
    groups: dict[tuple[object, ...], list[Scored]] = defaultdict(list)
    for one in scored:
        if one.time_error is not None:
            groups[_question(one.run)].append(one)
    return [_ranked(group) for group in groups.values() if len(group) >= at_least]


def by_source(runs: Sequence[MeasuredRun]) -> Mapping[str, list[MeasuredRun]]:
    """In order of their first row."""
    found: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        found.setdefault(run.source, []).append(run)
    return found


_ASKED = (
    "layers", "embed", "heads", "kv_heads", "head_size", "mlp", "mlp_inputs", "experts", "top_k", "sequence",
    "batch", "devices",
)  # fmt: skip
"""What strategies that are ranked against each other have in common."""


def _question(run: MeasuredRun) -> tuple[object, ...]:
    return (run.source, run.labels, *(run.columns[name] for name in _ASKED))


def _ranked(group: Sequence[Scored]) -> RankedGroup:
    measured = np.asarray([one.run.step_s for one in group], dtype=np.float64)
    predicted = np.asarray([one.step_s for one in group], dtype=np.float64)
    tau = float(kendalltau(predicted, measured).statistic) if np.ptp(measured) and np.ptp(predicted) else None
    return RankedGroup(
        source=group[0].run.source,
        size=len(group),
        regret=float(measured[predicted.argmin()] / measured.min() - 1),
        tau=tau,
    )


def _belief(belief: Belief, fits: Mapping[str, Floats], without: str) -> Belief:
    return learn(belief, [found for source, found in fits.items() if source != without])


def _score(known: Sequence[MeasuredRun], asked: Sequence[MeasuredRun], fits: StackFits) -> list[Scored]:
    planned = [run for run in asked if run.columns]
    found = {run.row_id: Scored(run=run) for run in asked}
    if planned:
        source = planned[0].source
        timed, weighed = _timed(known), _weighed(known)
        time = calibrate(step_seconds, timed, _seconds(timed), fits.time_belief(source))
        memory = calibrate(reported_bytes, weighed, _bytes(weighed), fits.memory_belief(source))
        seconds = time.predict(planned)
        reported, largest = memory.predict(planned), memory.predict(planned, model=largest_bytes)
        for i, run in enumerate(planned):
            found[run.row_id] = Scored(
                run=run,
                step_s=float(seconds.expected[i]),
                low_s=float(seconds.low[i]),
                high_s=float(seconds.high[i]),
                reported_bytes=float(reported.expected[i]),
                largest_bytes=float(largest.expected[i]),
            )
    return list(found.values())


def _unlike(runs: Sequence[MeasuredRun], count: int) -> list[MeasuredRun]:
    """So many runs that resemble each other little; the first is the one that resembles all others most."""
    if not runs or count < 1:
        return []
    features = features_of(cases_of(runs), [run.labels for run in runs])
    alike = resemblance(features, features)
    taken = [int(alike.sum(axis=1).argmax())]
    while len(taken) < min(count, len(runs)):
        nearest = alike[:, taken].max(axis=1)
        nearest[taken] = np.inf
        taken.append(int(nearest.argmin()))
    return [runs[i] for i in taken]


def _timed(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    return [run for run in runs if not run.problem]


def _weighed(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    return [run for run in runs if run.columns and run.peak_bytes is not None]


def _seconds(runs: Sequence[MeasuredRun]) -> Floats:
    return np.asarray([run.step_s for run in runs], dtype=np.float64)


def _bytes(runs: Sequence[MeasuredRun]) -> Floats:
    return np.asarray([run.peak_bytes for run in runs], dtype=np.float64)
