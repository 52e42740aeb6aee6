"""Which checkpoints may go once a newer one is durable."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Which checkpoints of a run stay."""

    newest: int = 3
    """How many of the newest complete ones, at least 1."""
    every: int | None = None
    """Those of steps that it divides stay for good; None: none."""
    pinned: frozenset[int] = frozenset()
    """Steps that stay whatever else holds, such as the last good one before a loss spike."""
    best: int | None = None
    """The step with the best evaluation, kept beside the newest and never instead of one."""
    suspect: frozenset[int] = frozenset()
    """Steps whose state may be spoilt: they push no other out. As many of them stay as of the others."""

    def __post_init__(self) -> None:
        assert self.newest >= 1, "a run keeps at least its newest checkpoint"


@dataclass(frozen=True, kw_only=True, slots=True)
class PruningPlan:
    """What to remove, oldest first, and why the rest stays."""

    remove: tuple[int, ...]
    kept: Mapping[int, str]
    """Reason by step, in order of step."""


def plan_pruning(complete: Collection[int], retention: Retention) -> PruningPlan:
    """The steps to remove among the complete ones.

    Called with what will be complete after the save in progress, and carried out only when that save is
    durable. Steps that are not complete neither count towards ``newest`` nor are ever removed here.

    >>> plan_pruning([900, 1000, 8], Retention(newest=1, best=8)).remove
    (900,)
    """
    suspect = sorted(set(complete) & retention.suspect)
    trusted = sorted(set(complete) - retention.suspect)
    kept = {}
    for step in sorted(complete):
        reasons = [
            reason
            for reason, holds in (
                ("newest", step in trusted[-retention.newest :]),
                ("suspect", step in suspect[-retention.newest :]),
                ("pinned", step in retention.pinned),
                ("best", step == retention.best),
                (f"every {retention.every}", retention.every is not None and step % retention.every == 0),
            )
            if holds
        ]
        if reasons:
            kept[step] = ", ".join(reasons)
    return PruningPlan(remove=tuple(step for step in sorted(complete) if step not in kept), kept=kept)


def best_step(losses: Mapping[int, float]) -> int | None:
    """The step with the lowest evaluation loss, the later of equals; None without a comparable loss."""
    comparable = [(loss, -step) for step, loss in losses.items() if loss == loss]
    return -min(comparable)[1] if comparable else None
