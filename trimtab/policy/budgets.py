"""How many losses does a run bear? Counted by cause, forgiven by progress, and never the same step again and again."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class LossKind(StrEnum):
    """Whose fault a loss is."""

    PREEMPTION = "preemption"
    """The place was taken away: nobody's fault, and never counted."""
    NODE_LOSS = "node_loss"
    """A device, a node or the system under it."""
    USER_ERROR = "user_error"
    """An exception in the program."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A rank was lost.

    Args:
        kind: Whose fault it is.
        step: That it was lost in.
        epoch: That it was lost from; ranks that are lost together are lost from one.
        committed: Steps committed by then, of the whole run.
    """

    kind: LossKind
    step: int
    epoch: int
    committed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What is borne.

    Args:
        node_losses: Losses of this kind that are not forgiven.
        user_errors: Likewise.
        forgiven_after: Committed steps after which a loss no longer counts.
    """

    node_losses: int = 16
    user_errors: int = 0
    forgiven_after: int = 1_000

    def of(self, kind: LossKind) -> int | None:
        """Losses of a kind that are borne; None for any number."""
        return {
            LossKind.PREEMPTION: None,
            LossKind.NODE_LOSS: self.node_losses,
            LossKind.USER_ERROR: self.user_errors,
        }[kind]


SAME_STEP = {LossKind.NODE_LOSS: 4, LossKind.USER_ERROR: 2}
"""Epochs in which one step may fail before it is the step that is at fault: an error of a program does not go away by
itself, and a node that dies while the others re-form says nothing of the step."""


def over_budget(losses: Sequence[Loss], budget: Budget) -> str:
    """Why a run must end now; empty if it may go on.

    Args:
        losses: Of the attempt, in order; the last one is the newest, and the only one to be judged.
        budget: What is borne.

    >>> once = Loss(kind=LossKind.NODE_LOSS, step=7, epoch=1, committed=7)
    >>> over_budget([once], Budget(node_losses=0))
    'that is node_loss number 1, more than the budget of 0 (fault_tolerance.restarts.node_loss)'
    """
    newest = losses[-1]
    most = budget.of(newest.kind)
    if most is None:
        return ""
    alike = [loss for loss in losses if loss.kind is newest.kind]
    failed = {loss.epoch for loss in alike if loss.step == newest.step}
    counted = [loss for loss in alike if newest.committed - loss.committed < budget.forgiven_after]
    if len(counted) > most:
        since = f" within {budget.forgiven_after} steps" if len(alike) > len(counted) else ""
        return (
            f"that is {newest.kind} number {len(counted)}{since}, more than the budget of {most} "
            f"(fault_tolerance.restarts.{newest.kind})"
        )
    if len(failed) >= SAME_STEP[newest.kind]:
        return f"step {newest.step} failed {len(failed)} times and would fail again"
    return ""
