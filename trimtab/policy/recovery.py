"""Which way back is there when ranks are lost? The nearest state that still exists whole."""

from dataclasses import dataclass
from enum import StrEnum

from trimtab.terms import OnLoss

IN_THE_STEP = frozenset({OnLoss.EXACT, OnLoss.REDO, OnLoss.SAME_BATCH, OnLoss.RESCALE})
"""Rules by which survivors commit the step in which a peer dies."""


class WayBack(StrEnum):
    """From where training goes on, nearest first."""

    FINISH = "finish"
    """Survivors compute what is lost and commit the step."""
    REDO = "redo"
    """Survivors compute the step again under the new ownership."""
    SNAPSHOT = "snapshot"
    """All return to the newest snapshot in memory."""
    CHECKPOINT = "checkpoint"
    """All return to the newest durable checkpoint before the fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """What a loss leaves.

    Args:
        rule: What the run does on a loss, ``auto`` resolved for its layout.
        whole_units: Groups of ranks that live and hold the whole state among them.
        has_snapshot: Whether every lost piece of the newest snapshot in memory lives with its buddy.
        is_spoilt: Whether numbers may be wrong: whatever is in memory is no way back.
    """

    rule: OnLoss
    whole_units: int
    has_snapshot: bool
    is_spoilt: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """The way back, and why no nearer one."""

    way: WayBack
    reason: str


def recover(damage: Damage) -> Recovery:
    """The nearest way back from a loss.

    >>> recover(Damage(rule=OnLoss.REDO, whole_units=3, has_snapshot=False)).way
    <WayBack.REDO: 'redo'>
    >>> recover(Damage(rule=OnLoss.REDO, whole_units=0, has_snapshot=False)).reason
    'no group of living ranks holds the whole state, and no buddy holds what is lost'
    """
    assert damage.rule is not OnLoss.AUTO, "auto is resolved by the layout before anything is lost"
    if damage.is_spoilt:
        return Recovery(way=WayBack.CHECKPOINT, reason="what is in memory may be spoilt")
    if damage.rule in IN_THE_STEP and damage.whole_units:
        way = WayBack.REDO if damage.rule is OnLoss.REDO else WayBack.FINISH
        return Recovery(way=way, reason=f"{damage.whole_units} groups of living ranks hold the whole state")
    why = (
        "no group of living ranks holds the whole state"
        if damage.rule in IN_THE_STEP
        else "the state exists once over the ranks"
    )
    if damage.has_snapshot:
        return Recovery(way=WayBack.SNAPSHOT, reason=f"{why}; buddies hold what is lost")
    return Recovery(way=WayBack.CHECKPOINT, reason=f"{why}, and no buddy holds what is lost")
