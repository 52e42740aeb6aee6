"""What does a rank hold between steps, and what is the most that it needs in each part of a step?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from trimtab.cost.memory import MemoryClasses, Moment
from trimtab.plan.physical import Plan
from trimtab.plan.program import COLLECTIVES, Operator, OperatorKind, Phase
from trimtab.runtime.lowering.measurement.storages import Peak, StorageTracker
from trimtab.runtime.lowering.scopes import Observer, Scope

_MOMENT = {
    Phase.FORWARD: Moment.FORWARD,
    Phase.RECOMPUTE: Moment.BACKWARD,
    Phase.BACKWARD: Moment.BACKWARD,
    Phase.UPDATE: Moment.UPDATE,
}

OTHER = "other"
"""What a rank holds between steps and nobody has named: must be nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryMeasurement:
    """Bytes of storages on one rank.

    Args:
        held: Between steps, by class.
        moments: The most in each part of a step, by class as far as a storage's purpose was known then.
    """

    held: Mapping[str, int]
    moments: Mapping[Moment, MemoryClasses]

    @property
    def peak_bytes(self) -> int:
        """The most of all."""
        return max(classes.total for classes in self.moments.values())


class MemoryObserver(Observer):
    """Tells a tracker what storages are for, by the operator that makes them.

    Args:
        plan: That the rank runs.
        tracker: Entered while the rank computes.
    """

    def __init__(self, plan: Plan, tracker: StorageTracker) -> None:
        self._tracker = tracker
        self._gathers = {id(operator) for block in plan.blocks for operator in block.gathers}
        self._recomputed = {
            block.name: {(operator.kind, operator.parameters) for operator in block.recompute}
            for block in plan.blocks
        }
        self._results = frozenset(plan.update.results.values())
        self._moment = Moment.FORWARD
        self._peaks: dict[Moment, Peak] = {}

    def start(self) -> None:
        """A step begins; peaks of earlier ones are forgotten."""
        self._peaks.clear()
        self._moment = Moment.FORWARD
        self._tracker.begin()

    def measured(self, held: Mapping[str, Iterable[Tensor]]) -> MemoryMeasurement:
        """A step has ended.

        Args:
            held: What the rank says that it holds, by class.
        """
        self._leave()
        moments = {moment: _classes(peak) for moment, peak in self._peaks.items()}
        tracker = self._tracker
        tracker.relabel_all(OTHER)
        for name, tensors in held.items():
            tracker.relabel(tensors, name)
        return MemoryMeasurement(held=tracker.bytes_by_label, moments=moments)

    def begins(self, scope: Scope, operator: Operator) -> None:
        """What an operator makes first are its buffers, if it sends."""
        moment = _MOMENT[scope.phase]
        if moment is not self._moment:
            self._leave()
            self._moment = moment
            self._tracker.begin()
        self._tracker.label = "buffers" if operator.kind in COLLECTIVES else "working"
        self._tracker.fresh()

    def made(self, scope: Scope, operator: Operator) -> None:
        """Its outputs are what the plan says; what else is alive was kept for its gradient."""
        tracker = self._tracker
        outputs = {name: scope.tensors[name] for name in operator.outputs}
        alive = tracker.fresh()
        tracker.label = "working"
        tracker.relabel_keys(alive, self._purpose(scope, operator))
        if id(operator) in self._gathers:
            tracker.relabel(outputs.values(), "gathered")
        elif operator.kind is OperatorKind.ACCUMULATE:
            tracker.relabel(outputs.values(), "gradients")
        elif scope.phase is Phase.UPDATE:
            tracker.relabel(outputs.values(), "working")
            tracker.relabel((outputs[name] for name in outputs if name in self._results), "parameters")
        elif scope.site is not None:
            kept = scope.site.block.kept
            tracker.relabel((tensor for name, tensor in outputs.items() if name not in kept), "working")
            if scope.phase is Phase.FORWARD:
                tracker.relabel(
                    (scope.tensors[name] for name in kept if name in scope.tensors), "activations"
                )

    @property
    def wants_one_thread(self) -> bool:
        """So that the same is alive at the same time in every run."""
        return True

    def _purpose(self, scope: Scope, operator: Operator) -> str:
        """What is left of an operator but its outputs."""
        if operator.kind is OperatorKind.UPDATE:
            return "states"
        if scope.phase is not Phase.FORWARD or id(operator) in self._gathers:
            return "working"
        is_again = (operator.kind, operator.parameters) in self._recomputed[scope.block]
        return "working" if is_again else "activations"

    def _leave(self) -> None:
        peak, before = self._tracker.peak, self._peaks.get(self._moment, Peak())
        self._peaks[self._moment] = max(before, peak, key=lambda found: found.total_bytes)


def _classes(peak: Peak) -> MemoryClasses:
    return replace(MemoryClasses(), **peak.by_label)
