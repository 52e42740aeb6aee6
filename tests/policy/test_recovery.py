import pytest

from trimtab.policy.recovery import Damage, WayBack, recover
from trimtab.terms import OnLoss


@pytest.mark.parametrize(
    ("rule", "whole_units", "has_snapshot", "is_spoilt", "way"),
    [
        (OnLoss.EXACT, 1, False, False, WayBack.FINISH),
        (OnLoss.SAME_BATCH, 3, True, False, WayBack.FINISH),
        (OnLoss.RESCALE, 3, True, False, WayBack.FINISH),
        (OnLoss.REDO, 1, True, False, WayBack.REDO),
        (OnLoss.REDO, 0, True, False, WayBack.SNAPSHOT),
        (OnLoss.EXACT, 0, False, False, WayBack.CHECKPOINT),
        (OnLoss.ROLLBACK, 0, True, False, WayBack.SNAPSHOT),
        (OnLoss.ROLLBACK, 3, False, False, WayBack.CHECKPOINT),
        (OnLoss.EXACT, 3, True, True, WayBack.CHECKPOINT),
        (OnLoss.ROLLBACK, 0, True, True, WayBack.CHECKPOINT),
    ],
)
def test_the_nearest_whole_state_is_the_way_back(rule, whole_units, has_snapshot, is_spoilt, way):
    """A farther way loses work, a nearer one does not exist."""
    damage = Damage(rule=rule, whole_units=whole_units, has_snapshot=has_snapshot, is_spoilt=is_spoilt)
    assert recover(damage).way is way


def test_a_rollback_says_why_it_is_one():
    """Who asked for no survival is not told that no group is whole."""
    asked = recover(Damage(rule=OnLoss.ROLLBACK, whole_units=0, has_snapshot=True)).reason
    forced = recover(Damage(rule=OnLoss.REDO, whole_units=0, has_snapshot=True)).reason
    assert asked == "the state exists once over the ranks; buddies hold what is lost"
    assert forced == "no group of living ranks holds the whole state; buddies hold what is lost"


def test_auto_is_no_rule():
    """It must be resolved before anything is lost."""
    with pytest.raises(AssertionError, match="auto"):
        recover(Damage(rule=OnLoss.AUTO, whole_units=1, has_snapshot=False))
