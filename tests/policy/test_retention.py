import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.policy.retention import Retention, best_step, plan_pruning


@pytest.mark.parametrize(
    ("complete", "retention", "removed"),
    [
        # S-CKP-12: by text, 900 is newer than 1000 and the newest would be removed.
        ([8, 9, 10, 99, 100, 101, 999, 1000], Retention(newest=2), (8, 9, 10, 99, 100, 101)),
        ([1000, 900], Retention(newest=1), (900,)),
        # S-CKP-13: the best is kept beside the last, not instead of it.
        ([10, 20, 30], Retention(newest=1, best=10), (20,)),
        ([10, 20, 30], Retention(newest=1, best=30), (10, 20)),
        ([10, 20, 30], Retention(newest=2, best=30), (10,)),
        # A pinned one stays, also beyond the count.
        ([10, 20, 30], Retention(newest=1, pinned=frozenset({10, 20})), ()),
        # Suspect ones push no good one out, and are as many at most.
        ([10, 20, 30, 40], Retention(newest=1, suspect=frozenset({30, 40})), (10, 30)),
        ([10, 20, 30, 40], Retention(newest=2, suspect=frozenset({40})), (10,)),
        ([10, 20], Retention(newest=1, suspect=frozenset({10, 20})), (10,)),
        # Those of every so many steps stay for good.
        ([90, 100, 150, 200, 210], Retention(newest=1, every=100), (90, 150)),
        # S-CKP-11: names that are not complete neither count nor go.
        ([10], Retention(newest=1, pinned=frozenset({99}), best=98), ()),
        ([], Retention(), ()),
        ([5], Retention(newest=3), ()),
    ],
)
def test_what_is_removed(complete, retention, removed):
    """S-CKP-11, S-CKP-12, S-CKP-13: a wrong row here deletes a checkpoint that somebody needs."""
    assert plan_pruning(complete, retention).remove == removed
    assert plan_pruning(set(complete), retention).remove == removed


def test_newest_always_stays():
    """S-CKP-11: a run without a single checkpoint cannot resume."""
    for newest in (1, 2, 3):
        for last in range(1, 8):
            plan = plan_pruning(range(last + 1), Retention(newest=newest, best=0))
            assert last in plan.kept
            assert len(plan.kept) + len(plan.remove) == last + 1


@given(
    complete=st.sets(st.integers(0, 40), min_size=1),
    newest=st.integers(1, 4),
    every=st.none() | st.integers(1, 10),
    suspect=st.frozensets(st.integers(0, 40)),
)
def test_one_always_stays_and_a_good_one_if_there_is(complete, newest, every, suspect):
    """S-CKP-11: whatever the marks, a run can go on, and from a state that nobody suspects."""
    plan = plan_pruning(complete, Retention(newest=newest, every=every, suspect=suspect))
    assert plan.kept.keys() | set(plan.remove) == complete
    trusted = complete - suspect
    assert max(trusted or complete) in plan.kept


def test_reasons_say_why_each_stays():
    """``checkpoints ls`` could not say why an old one is still there."""
    plan = plan_pruning([10, 20, 30], Retention(newest=1, pinned=frozenset({20}), best=20))
    assert plan.kept == {20: "pinned, best", 30: "newest"}


def test_best_step_takes_the_later_of_equals_and_no_nan():
    """A NaN compares as neither worse nor better, so the order of evaluations would decide."""
    assert best_step({10: 2.0, 20: 1.5, 30: 1.5, 40: float("nan")}) == 30
    assert best_step({10: float("nan"), 20: 3.0}) == 20
    assert best_step({10: float("nan")}) is None
    assert best_step({}) is None
