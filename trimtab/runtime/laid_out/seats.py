"""Makes the seats of a rank: a position of any layout that the run may go through, ready to train."""

import functools
from collections.abc import Callable, Mapping, Sequence

from trimtab.plan.explanation import obstacle_to_same_bits
from trimtab.plan.physical import Plan
from trimtab.plan.resizing import has_second_copy
from trimtab.runtime.faults import Faults
from trimtab.runtime.laid_out.contents import Contents
from trimtab.runtime.laid_out.elastic import Seat
from trimtab.runtime.laid_out.evaluation import LaidOutEvaluator
from trimtab.runtime.laid_out.runner import LaidOutRules, LaidOutRunner, Timed
from trimtab.runtime.laid_out.snapshots import Snapshots
from trimtab.runtime.laid_out.state import LaidOutState
from trimtab.runtime.lowering import Microbatch, Rank, Rules, Wires, own_columns
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.watch import Watch
from trimtab.runtime.weights.reading import Weights

Load = Callable[[int, int, int], list[Microbatch]]
"""Microbatches of a share: (step, first sample inside the batch, samples)."""


class SeatMaker:
    """See ``make``.

    Args:
        plans: Of the run, by their number of positions.
        rules: Of its steps.
        seed: Of first weights.
        weights: What the run begins with, if not with random weights.
        load: Of microbatches of so many samples.
        batches: Held-out ones of so many samples.
        is_cut_short: Whether somebody wants the run to stop.
        snapshots: Takes copies; None if none are taken.
    """

    def __init__(
        self,
        *,
        plans: Mapping[int, Plan],
        rules: Rules,
        seed: int,
        weights: Callable[[], Weights | None],
        load: Callable[[int], Load],
        batches: Callable[[int], Sequence[Microbatch]],
        is_cut_short: Callable[[], bool],
        snapshots: Snapshots | None,
        recorder: Recorder,
        faults: Faults,
        watch: Watch,
    ) -> None:
        self._plans, self._rules, self._seed, self._weights = plans, rules, seed, weights
        self._load, self._batches, self._is_cut_short = load, batches, is_cut_short
        self._snapshots, self._recorder, self._faults, self._watch = snapshots, recorder, faults, watch
        self.contents = functools.cache(self._contents)

    def make(self, size: int, position: int) -> Seat:
        """A seat with the first weights in it; whoever knows better fills it."""
        plan = self._plans[size]
        rank = Rank(
            plan,
            position,
            Wires(position, size, is_connected=False),
            self._rules,
            seed=self._seed,
            weights=self._weights(),
            adds_by_share=plan.work.has_fixed_order and obstacle_to_same_bits(plan) is None,
            feed=own_columns,
        )
        runner = LaidOutRunner(
            rules=LaidOutRules(
                learning_rate=self._rules.learning_rate, ranks_per_replica=size // plan.work.replicas
            ),
            rank=rank,
            load=self._load(plan.work.microbatch),
            timed=Timed(self._recorder, self._watch),
            recorder=self._recorder,
            faults=self._faults,
            watch=self._watch,
            snapshots=self._snapshots,
        )
        batches = self._batches(plan.work.microbatch)
        evaluator = LaidOutEvaluator(
            rank=rank, batches=batches, watch=self._watch, is_cut_short=self._is_cut_short
        )
        return Seat(
            position=position,
            state=LaidOutState(rank, runner.connect),
            runner=runner,
            evaluator=evaluator if batches else None,
            is_alone=not has_second_copy(plan),
        )

    def _contents(self, size: int) -> Contents:
        return Contents(self._plans[size], self._rules.optimizer.states)
