"""What does this release's runtime need of each rank of a plan? The one figure that ``explain`` and ``plan`` tell.

A plan is run in one of two ways. Ranks that hold the same train the model's module, and what they allocate for parameters,
gradients and states is known; all others run the plan operator by operator. What autograd keeps is the same for both: the
module and the operators are the same products, norms and attention.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from trimtab.cost.counts import Counts
from trimtab.cost.memory import MemoryClasses, MemoryCounter, Moment, RankMemory
from trimtab.cost.replicated import RankMemory as AllocatedMemory
from trimtab.cost.step_memory import StepMemory
from trimtab.plan.physical import Plan

ASSUMPTIONS = (
    "memory: of this runtime, as it allocates; measured peaks of more than sixty layouts lie within 6 % of it, those of "
    "ranks that hold the same within 10 %",
    "gradients: of ranks that hold the same, one vector a share and the sum that the optimizer reads",
    "states: with a master copy where parameters are kept in another type, what an outer optimizer keeps, and what "
    "compression has left over",
    "gathered: parameters of the block in use, and of the next one, which is gathered meanwhile",
    "activations: what autograd keeps, the inputs of every operator among it; attention keeps no scores",
    "working: values as long as they are needed, logits in fp32 among them; constants, such as angles of positions",
    "buffers: vectors that are packed before they travel, and what has been sent to neighbouring stages, which lives until "
    "the step ends",
    "not counted: the device's context, gaps of the allocator, what a kernel allocates and frees by itself, dropout masks; "
    "they often take 5 to 10 %",
)
"""What the figures rest on."""


class RunMemory:
    """Memory of the ranks of a plan.

    Args:
        plan: Whose ranks.
        counts: Of the plan.
        num_leaves: Gradients that a rank keeps at once, for what the plan's own values take.
        allocated: What ranks that hold the same allocate, on the one that needs most; None for plans that are run operator by
            operator.
    """

    def __init__(
        self, plan: Plan, counts: Counts, *, num_leaves: int, allocated: AllocatedMemory | None = None
    ) -> None:
        self._counts, self._allocated = counts, allocated
        self._values = MemoryCounter(plan, counts, num_leaves=num_leaves)
        self._steps = StepMemory(plan, counts, is_module=allocated is not None)

    def of(self, number: int) -> RankMemory:
        """Of a rank of a group, by the group's number."""
        return replace(
            self._values.of(number), moments=_with_allocated(self._steps.of(number), self._allocated)
        )

    def values_bytes(self, number: int) -> int:
        """The most that the plan's own values take, whoever runs them, by the group's number."""
        moments = _with_allocated(self._values.of(number).moments, self._allocated)
        return max(classes.total for classes in moments.values())

    def largest(self, *, enough_bytes: float = inf) -> RankMemory:
        """Of the rank that needs most; of the first that needs more than what is enough to know, if there is one.

        Ranks at the ends of a pipeline are looked at first: they hold most microbatches, or the head.
        """
        count = len(self._counts.groups)
        order = sorted(range(count), key=lambda number: min(number, count - 1 - number))
        found = self.of(order[0])
        for number in order[1:]:
            if found.peak_bytes > enough_bytes:
                break
            found = max(found, self.of(number), key=lambda memory: memory.peak_bytes)
        return found


def _with_allocated(
    moments: Mapping[Moment, MemoryClasses], allocated: AllocatedMemory | None
) -> Mapping[Moment, MemoryClasses]:
    """With what the runtime is known to allocate; it exchanges in the update, and stages and keeps sums all the time."""
    if allocated is None:
        return moments
    exchanged = dict.fromkeys(Moment, allocated.kept_exchange_bytes)
    exchanged[Moment.UPDATE] = allocated.exchange_bytes
    return {
        moment: replace(
            classes,
            parameters=allocated.parameters_bytes,
            gradients=allocated.gradients_bytes,
            states=allocated.optimizer_bytes,
            buffers=allocated.staging_bytes + exchanged[moment],
        )
        for moment, classes in moments.items()
    }
