"""What sums need that start while the backward pass goes on."""

from collections.abc import Collection, Sequence

from trimtab.cost.operator_bytes import OperatorCounter
from trimtab.plan.early_sums import BACKWARD, early_sums
from trimtab.plan.physical import Plan
from trimtab.plan.pipelines import Action
from trimtab.plan.program import Operator


class EarlyMemory:
    """Goes through the backward passes and the update of one rank.

    Args:
        plan: Of the rank.
        actions: All that the rank does in a step, in order.
        in_place: Summands that the sum over ranks takes the place of.

    Attributes:
        count: For operators of the update.
        started: Sums that run beside the backward pass.
        made: Bytes of what they give: there from their start on.
    """

    def __init__(self, plan: Plan, actions: Sequence[Action], in_place: Collection[str]) -> None:
        update = plan.update
        self.count = OperatorCounter(plan.network, plan.axis_sizes, update.values, {}, in_place)
        self._starts: dict[int, list[Operator]] = {}
        for early in early_sums(plan, actions):
            self._starts.setdefault(early.after, []).append(early.operator)
        self._last = {action.stage: action.microbatch for action in actions if action.kind in BACKWARD}
        self.started: list[Operator] = []
        self.made = 0

    def starts_in(self, action: Action) -> bool:
        """Whether a sum may start in a backward pass."""
        return bool(self._starts) and action.microbatch == self._last[action.stage]

    def leave(self, block: int, action: Action) -> int | None:
        """A backward pass has left a block: if it was the last one, what has waited for it starts.

        Returns: Bytes that the sum which needs most needs while it is at work; None if nothing starts.
        """
        if action.microbatch != self._last[action.stage] or block not in self._starts:
            return None
        for operator in self._starts[block]:
            self.started.append(operator)
            self.made += sum(self.count.made(operator, name) for name in operator.outputs)
        return max(self.count.of(operator).scratch for operator in self._starts[block])

    def is_started(self, operator: Operator) -> bool:
        """Whether it runs beside the backward pass."""
        return any(operator is found for found in self.started)
