"""What can be promised when a rank dies: read off where every piece of the state exists a second time."""

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.plan.physical import Plan
from trimtab.plan.placements import REPLICATED, PlacementKind
from trimtab.terms import OnLoss, Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Survival:
    """The strongest rule that a layout allows.

    Args:
        rule: Of DESIGN's table: exact, redo, same_batch or rollback.
        reason: Why this and no stronger one, in a sentence.
        line: The statement that rules a stronger one out; None if none does.
    """

    rule: OnLoss
    reason: str
    line: Span | None = None


def survival(plan: Plan) -> Survival:
    """The strongest rule for the loss of a rank under a plan."""
    axes = [axis for axis, size in plan.mesh.axes if size > 1]
    if not axes:
        return Survival(rule=OnLoss.ROLLBACK, reason="a single rank has no peer that holds its state")
    batch_axes = [axis for axis in axes if axis in plan.bound.batch_axes]
    replicas = replica_axes(plan)
    others = [axis for axis in axes if axis not in replicas]
    if not replicas:
        what, line = _what_differs(plan, batch_axes or others)
        return Survival(
            rule=OnLoss.ROLLBACK, reason=f"{what}, and no axis holds the whole state again", line=line
        )
    kept_back = _kept_back(plan)
    if kept_back is not None:
        return kept_back
    over = ", ".join(replicas)
    for by_axis in plan.bound.averages.values():
        for axis, averaging in by_axis.items():
            return Survival(
                rule=OnLoss.SAME_BATCH,
                reason=f"ranks over {over} hold the same state, but replicas differ over {axis} by design: no same bits",
                line=averaging.line,
            )
    if not plan.work.has_fixed_order:
        reason = f"ranks over {over} hold the same state; without shares their sum has no fixed order"
        return Survival(rule=OnLoss.SAME_BATCH, reason=reason)
    if others:
        what, line = _what_differs(plan, others)
        reason = f"{what}: a lost rank breaks its group; the state exists again over {over}"
        return Survival(rule=OnLoss.REDO, reason=reason, line=line)
    reason = f"every rank over {over} holds the whole state: survivors compute only the lost shares"
    return Survival(rule=OnLoss.EXACT, reason=reason)


def _kept_back(plan: Plan) -> Survival | None:
    """Where compression keeps for later what it has not sent, that is on one rank only."""
    for operator in plan.update.operators:
        transfer = operator.transfer
        if transfer is not None and transfer.compress in _KEEPING:
            reason = f"COMPRESS {transfer.compress} keeps for later what a rank has not sent, and no other rank has it"
            return Survival(rule=OnLoss.ROLLBACK, reason=reason, line=operator.because.line)
    return None


_KEEPING = ("int8", "topk", "powersgd")
"""Kinds of compression with error feedback."""


def replica_axes(plan: Plan) -> list[str]:
    """The axes of more than one rank along which all hold the same state and compute different samples."""
    return [
        axis
        for axis, size in plan.mesh.axes
        if size > 1 and axis in plan.bound.batch_axes and _is_replica(plan, axis)
    ]


def _is_replica(plan: Plan, axis: str) -> bool:
    """Whether the ranks along an axis hold the same parameters, gradients and states between steps."""
    return axis != plan.pipeline.axis and all(
        placements.on(axis) == REPLICATED
        for parameter in plan.parameters.values()
        for placements in (parameter.computed, *parameter.stored.values())
    )


def _what_differs(plan: Plan, axes: Sequence[str]) -> tuple[str, Span | None]:
    """What the ranks along the first of these axes hold different pieces of, and the statement."""
    axis = axes[0]
    if axis == plan.pipeline.axis:
        return f"layers are split over {axis}", plan.pipeline.line
    for parameter in plan.parameters.values():
        for table, placements in parameter.stored.items():
            found = placements.on(axis)
            match found.kind:
                case PlacementKind.STORED:
                    lines = parameter.lines
                    line = lines.get(f"store {table} {axis}", lines.get(f"store params {axis}"))
                    return f"{table} are stored in pieces over {axis}", line
                case PlacementKind.SPLIT:
                    return f"{found.dim} is split over {axis}", parameter.lines.get(f"split {axis}")
                case PlacementKind.VARYING:
                    return f"parameters differ over {axis} by design", parameter.lines.get(f"average {axis}")
    cut = plan.bound.attention.get(axis)
    return f"the sequence is split over {axis}", cut.line if cut else None
