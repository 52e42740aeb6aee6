"""What sums need that have been started while the backward pass goes on, until they are waited for."""

from collections.abc import Sequence

from trimtab.cost.operator_bytes import OperatorCounter
from trimtab.plan.early_sums import BACKWARD, early_sums
from trimtab.plan.lifetimes import sums_in_place
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import Action
from trimtab.plan.program import Operator


class EarlyMemory:
    """Goes through the backward passes and the update of one rank.

    Args:
        plan: Of the rank.
        actions: All that the rank does in a step, in order.

    Attributes:
        count: For operators of the update.
        made: Bytes of what sums give that have been started: there from their start on.
        scratch: Bytes that they may need at once: of those that nobody has waited for, one at a time on each group of
            ranks.
    """

    def __init__(self, plan: Plan, actions: Sequence[Action]) -> None:
        update = plan.update
        self.count = OperatorCounter(plan.network, plan.axis_sizes, update.values, {}, sums_in_place(update))
        self._starts: dict[int, list[Operator]] = {}
        for early in early_sums(plan, actions):
            self._starts.setdefault(early.after, []).append(early.operator)
        self._last = {action.stage: action.microbatch for action in actions if action.kind in BACKWARD}
        self._needs: dict[int, tuple[tuple[str, ...], int]] = {}
        self.started: list[Operator] = []
        self.made = self.scratch = 0

    def leave(self, block: int, action: Action) -> None:
        """A backward pass has left a block: if it was the last one, what has waited for it starts."""
        if action.microbatch != self._last[action.stage]:
            return
        for operator in self._starts.get(block, ()):
            assert operator.transfer is not None, "sums are sent"
            self.started.append(operator)
            self._needs[id(operator)] = operator.transfer.axes, self.count.of(operator).scratch
            self.made += sum(self.count.made(operator, name) for name in operator.outputs)
            self._weigh()

    def is_started(self, operator: Operator) -> bool:
        """Whether it runs, and nobody has waited for it."""
        return id(operator) in self._needs

    def join(self, operator: Operator) -> None:
        """One is waited for."""
        del self._needs[id(operator)]
        self._weigh()

    def _weigh(self) -> None:
        most: dict[tuple[str, ...], int] = {}
        for axes, needs in self._needs.values():
            most[axes] = max(most.get(axes, 0), needs)
        self.scratch = sum(most.values())
