"""What operators read and write, and who looks on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from trimtab.plan.program import Operator, OperatorKind, Phase, Value
from trimtab.runtime.lowering.closed_forms import ClosedTape
from trimtab.runtime.lowering.ring_attention import RingTape
from trimtab.runtime.lowering.share_sums import Leaves
from trimtab.runtime.lowering.sites import UPDATE, Site
from trimtab.runtime.lowering.tape import Tape

TapeKey = tuple[OperatorKind, tuple[str, ...]]
"""A forward operator of a block: no two have kind and parameters in common."""


@dataclass(kw_only=True, slots=True)
class Scope:
    """What operators read and write: the values of one block on one microbatch, or of the update.

    Args:
        site: The block at work; None for the update.
        microbatch: Counted from 0; of the update 0.
        phase: Of the step.
        step: Of the run, whose masks are drawn; None in evaluation, where nothing is dropped, and in the update.
        values: Declared types.
        tensors: What the rank has, by name.
        parameters: As operators take them, by name in the block.
        tapes: What forward operators have left.
        added_up: Gradients that earlier microbatches have left.
        leaves: The same by share, where shares are added in a fixed tree.
        scattered: Own pieces of gradients by share, which the ranks of a group have given each other.
    """

    site: Site | None
    microbatch: int
    phase: Phase
    values: Mapping[str, Value]
    tensors: dict[str, Tensor]
    step: int | None = None
    parameters: dict[str, Tensor] = field(default_factory=dict)
    tapes: dict[TapeKey, Tape | ClosedTape | RingTape] = field(default_factory=dict)
    added_up: dict[str, Tensor] = field(default_factory=dict)
    leaves: dict[str, Leaves] = field(default_factory=dict)
    scattered: dict[str, dict[int, Tensor]] = field(default_factory=dict)

    @property
    def block(self) -> str:
        """Name of the block; ``update``."""
        return self.site.block.name if self.site else UPDATE

    @property
    def where(self) -> str:
        """As ``block``, one layer told from another."""
        return str(self.site) if self.site else UPDATE


class Observer:
    """Looks on while a rank computes; called on the rank's own thread, and must not change what it sees."""

    def begins(self, scope: Scope, operator: Operator) -> None:
        """An operator is about to run."""

    def made(self, scope: Scope, operator: Operator) -> None:
        """An operator has run: its outputs are among the tensors of the scope."""

    @property
    def wants_one_thread(self) -> bool:
        """Whether what other threads of the rank would do is done at once on its own, where it would be started."""
        return False


Apply = Callable[[Scope, list[Tensor], frozenset[int] | None], Sequence[Tensor]]
"""From a scope, the tensors of an operator's inputs and the ranks that take part to its outputs."""
