"""Runs some steps of a plan on real ranks and measures them."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.plan.physical import Plan
from trimtab.plan.program import Operator
from trimtab.runtime.lowering.batches import Microbatch, microbatches_of
from trimtab.runtime.lowering.crew import Crew
from trimtab.runtime.lowering.host_memory import HostMemory
from trimtab.runtime.lowering.measurement.memory import MemoryMeasurement, MemoryObserver
from trimtab.runtime.lowering.measurement.storages import StorageTracker
from trimtab.runtime.lowering.measurement.times import StepTimes, Stopwatch, TimedWires
from trimtab.runtime.lowering.rank import Rank
from trimtab.runtime.lowering.scopes import Observer, Scope
from trimtab.runtime.lowering.updating import Rules
from trimtab.runtime.lowering.verification import Question, Rate, ragged_batch
from trimtab.runtime.lowering.wires import Count, Sent, Wires

UNTIMED_STEPS = 2
"""Before those that are timed: one in which optimizer states appear, and one in which memory is watched, which takes time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMeasurement:
    """What one rank measured.

    Args:
        memory: Between steps, and in the second step.
        steps: Times of those that were timed.
        counts: What was sent, in all steps.
    """

    memory: MemoryMeasurement
    steps: Sequence[StepTimes]
    counts: Mapping[Sent, Count]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What came out.

    Args:
        num_steps: Taken, those that were not timed among them.
        ranks: By rank.
    """

    num_steps: int
    ranks: Sequence[RankMeasurement]


def measure(question: Question, crew: Crew) -> Trial:
    """Run steps of a plan on a crew of as many ranks as its mesh has; UNTIMED_STEPS more than asked for.

    Raises: CrewError if a rank fails.
    """
    plan = question.plan
    num_steps = question.steps + UNTIMED_STEPS
    batches = [
        microbatches_of(plan.work, *ragged_batch(plan, question.seed, step)) for step in range(num_steps)
    ]
    rules = Rules(optimizer=question.optimizer, learning_rate=Rate(question.optimizer.lr), clip=question.clip)
    order = _Order(plan=plan, rules=rules, seed=question.seed, batches=batches)
    return Trial(num_steps=num_steps, ranks=crew.run(measure_rank, order))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Order:
    """What a rank is told to run."""

    plan: Plan
    rules: Rules
    seed: int
    batches: Sequence[tuple[Microbatch, ...]]


def measure_rank(wires: Wires, order: _Order) -> RankMeasurement:
    """A rank's part."""
    timed, observer = TimedWires(wires), _Handing()
    tracker = StorageTracker()
    memory = observer.to = MemoryObserver(order.plan, tracker)
    tracker.leave_out(tensor for batch in order.batches for pair in batch for tensor in pair)
    with tracker:
        rank = Rank(
            order.plan,
            wires.rank,
            timed,
            order.rules,
            seed=order.seed,
            observe=observer,
            host=HostMemory(making=tracker.looking_away),
        )
        rank.step(order.batches[0], 0)
        # Imports of torch on first use leave cycles that hold tensors; nobody can reach them.
        gc.collect()
        memory.start()
        rank.step(order.batches[1], 1)
        gc.collect()
        found = memory.measured(rank.held())
    watch = observer.to = Stopwatch(timed)
    steps = []
    for number, microbatches in enumerate(order.batches[UNTIMED_STEPS:], UNTIMED_STEPS):
        timed.meet()
        watch.start()
        rank.step(microbatches, number)
        steps.append(watch.stop())
    return RankMeasurement(memory=found, steps=steps, counts=dict(timed.counts))


class _Handing(Observer):
    """Hands on to one observer after the other."""

    def __init__(self) -> None:
        self.to = Observer()

    def begins(self, scope: Scope, operator: Operator) -> None:
        self.to.begins(scope, operator)

    def made(self, scope: Scope, operator: Operator) -> None:
        self.to.made(scope, operator)

    @property
    def wants_one_thread(self) -> bool:
        return self.to.wants_one_thread
