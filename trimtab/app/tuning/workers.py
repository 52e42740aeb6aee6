"""A worker: takes up trials of a study, holds each by a lease while it makes it, and says what it came to."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from trimtab.app.tuning.measures import as_smaller_is_better
from trimtab.app.tuning.owners import is_gone, own_name
from trimtab.app.tuning.studies import Study, Transaction, TrialRow
from trimtab.app.tuning.trial_making import TrialInterruptedError, TrialMaker
from trimtab.cost.search.tuning import Curve, Seen, Space, Told, is_behind, propose
from trimtab.policy.trials import (
    Ask,
    Finish,
    Take,
    Trial,
    TrialBudget,
    TrialState,
    lost_trials,
    next_move,
)
from trimtab.spec.tunings import Pruning, TuningObjective

_WAIT_S = 0.2
"""Before a worker that has to wait looks again."""

_RENEWALS = 3
"""Of a lease within its time."""

_SEEN = {
    TrialState.RUNNING: Seen.RUNNING,
    TrialState.WAITING: Seen.RUNNING,
    TrialState.DONE: Seen.DONE,
    TrialState.CUT_SHORT: Seen.CUT_SHORT,
    TrialState.OUT_OF_MEMORY: Seen.IMPOSSIBLE,
    TrialState.FAILED: Seen.IMPOSSIBLE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a study goes by.

    Args:
        space: What may be tried.
        objectives: What trials are judged by.
        budget: What may be spent.
        prune: When a trial that is behind is ended; None for never.
        lease_s: Seconds without a word after which a trial is anybody's.
        seed: Of what is proposed.
    """

    space: Space
    objectives: tuple[TuningObjective, ...]
    budget: TrialBudget
    prune: Pruning | None
    lease_s: float
    seed: int


@dataclass(slots=True, kw_only=True)
class Worker:
    """One of those that work on a study.

    Args:
        study: The study.
        rules: What it goes by.
        maker: Makes the trials.
        tell: Is told of each trial that ends.
        clock: Wall clock, in seconds, the same for all workers of a study.
    """

    study: Study
    rules: Rules
    maker: TrialMaker
    tell: Callable[[TrialRow], None] = lambda row: None
    clock: Callable[[], float] = time.time

    def work(self) -> str:
        """Make trials until nothing is left to do; returns why.

        Raises: TrialInterruptedError if this process was told to end; the trial at hand waits for another worker.
        """
        while True:
            with self.study.transaction() as now:
                move = self._move(now)
            if isinstance(move, Finish):
                return move.reason
            if isinstance(move, TrialRow):
                self._make(move)
            else:
                time.sleep(_WAIT_S)

    def _move(self, now: Transaction) -> TrialRow | Finish | None:
        """Take up a trial, in one transaction with whatever it depends on; None to look again later."""
        rows = self._without_lost(now)
        trials = [row.trial for row in rows]
        params = (
            propose(
                self.rules.space,
                [told_of(row, self.rules.objectives) for row in rows],
                num_objectives=len(self.rules.objectives),
                seed=self.rules.seed,
                allowed=lambda values: not self.maker.refusal(values),
            )
            if len(rows) < self.rules.budget.trials
            else None
        )
        devices = self.maker.devices_of(params) if params is not None else 0
        match next_move(trials, self.rules.budget, devices=devices, is_seen=params is None):
            case Finish() as move:
                return move
            case Take(number=number):
                return self._take(now, next(row for row in rows if row.trial.number == number))
            case Ask():
                assert params is not None, "there is a trial to make"
                trial = Trial(number=len(rows), state=TrialState.WAITING, devices=devices)
                now.add(trial, params)
                return self._take(now, TrialRow(trial=trial, params=params))
        return None

    def _without_lost(self, now: Transaction) -> list[TrialRow]:
        """All trials, those whose workers are gone let go."""
        rows = now.rows()
        running = [row.trial for row in rows if row.trial.state is TrialState.RUNNING]
        lost = {
            trial.number: trial
            for trial in lost_trials(
                running,
                gone=frozenset(trial.owner for trial in running if trial.owner and is_gone(trial.owner)),
                at_work=frozenset(trial.number for trial in running if self.maker.is_at_work(trial.number)),
                now_s=self.clock(),
            )
        }
        for trial in lost.values():
            now.change(trial)
            now.say(self.clock(), trial.number, f"its worker is gone: {trial.state.value}")
        return [replace(row, trial=lost.get(row.trial.number, row.trial)) for row in rows]

    def _take(self, now: Transaction, row: TrialRow) -> TrialRow:
        trial = replace(
            row.trial,
            state=TrialState.RUNNING,
            owner=own_name(),
            lease_until_s=self.clock() + self.rules.lease_s,
            attempts=row.trial.attempts + 1,
        )
        now.change(trial)
        now.say(self.clock(), trial.number, f"taken up by {trial.owner}, attempt {trial.attempts}")
        return replace(row, trial=trial)

    def _make(self, row: TrialRow) -> None:
        number = row.trial.number
        started_s = self.clock()
        with self._holding(number):
            try:
                outcome = self.maker.make(number, row.params, is_behind=self._is_behind)
            except TrialInterruptedError:
                self._give_back(row, self.clock() - started_s)
                raise
        with self.study.transaction() as now:
            is_first = now.end(number, outcome)
            word = (
                outcome.state.value
                if is_first
                else f"{outcome.state.value}, after somebody else had ended it"
            )
            now.say(self.clock(), number, f"{word}: {outcome.reason}" if outcome.reason else word)
        if is_first:
            self.tell(replace(row, trial=replace(row.trial, state=outcome.state), outcome=outcome))

    @contextmanager
    def _holding(self, number: int) -> Iterator[None]:
        """Renew the lease of a trial from a thread of its own, however long a step of it takes."""
        owner, ended = own_name(), threading.Event()

        def renew() -> None:
            while not ended.wait(self.rules.lease_s / _RENEWALS):
                with self.study.transaction() as now:
                    now.renew(number, owner, self.clock() + self.rules.lease_s)

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _give_back(self, row: TrialRow, seconds: float) -> None:
        with self.study.transaction() as now:
            now.change(
                replace(
                    row.trial,
                    state=TrialState.WAITING,
                    owner=None,
                    lease_until_s=0.0,
                    # Whoever was told to end is no failure of the trial.
                    attempts=row.trial.attempts - 1,
                    spent_s=row.trial.spent_s + seconds,
                )
            )
            now.say(self.clock(), row.trial.number, "given back: its worker was told to end")

    def _is_behind(self, curve: Curve) -> bool:
        prune = self.rules.prune
        if prune is None:
            return False
        finished = [
            row.outcome.curve
            for row in self.study.rows()
            if row.outcome is not None and row.outcome.state is TrialState.DONE
        ]
        return is_behind(
            curve,
            finished,
            after_steps=prune.after_steps,
            after_trials=prune.after_trials,
            percentile=prune.percentile,
        )


def told_of(row: TrialRow, objectives: tuple[TuningObjective, ...]) -> Told:
    """A trial as the search takes it."""
    outcome = row.outcome
    values: Mapping[str, float] = outcome.values if outcome else {}
    seen = _SEEN[row.trial.state]
    is_whole = all(objective.value in values for objective in objectives)
    if seen in (Seen.DONE, Seen.CUT_SHORT) and not is_whole:
        seen = Seen.IMPOSSIBLE
    return Told(
        params=row.params,
        seen=seen,
        values=tuple(as_smaller_is_better(objective, values[objective.value]) for objective in objectives)
        if is_whole
        else (),
        step=max(outcome.curve, default=0) if outcome else 0,
        excess=outcome.excess if outcome else 0.0,
    )
