"""Shares move from slow ranks to others, and back, as a function of measured seconds."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.plan.shares import assign_shares
from trimtab.policy.slowness import LEAST_GAIN, balance, prior_share_s, slow_ranks

EVEN = assign_shares(12, (0, 1, 2))


def test_a_slow_rank_gives_shares_away_and_says_why() -> None:
    """All others would wait for it in every step."""
    found = balance(EVEN, (0, 1, 2), {0: 1.0, 1: 4.0, 2: 1.0})
    assert Counter(found.owners) == {0: 5, 1: 2, 2: 5} or Counter(found.owners) == {0: 6, 1: 1, 2: 5}
    assert found.slow == {1: 4.0}
    assert "rank 1 takes 4.0 times the median for a share" in found.reason
    assert "shares of ranks 0, 1, 2: 4, 4, 4 to" in found.reason


def test_it_gets_them_back_when_it_recovers() -> None:
    """A rank that was slow for an hour must not idle for the rest of the run."""
    away = balance(EVEN, (0, 1, 2), {0: 1.0, 1: 4.0, 2: 1.0}).owners
    assert balance(away, (0, 1, 2), {0: 1.0, 1: 1.0, 2: 1.0}).owners == EVEN


@given(st.lists(st.floats(0.97, 1.03), min_size=3, max_size=3))
def test_noise_moves_nothing(times: list[float]) -> None:
    """Shares that wander are moved for nothing."""
    found = balance(EVEN, (0, 1, 2), dict(enumerate(times)))
    assert (found.owners, found.reason) == (EVEN, "")


def test_stronger_cards_have_more_from_what_the_catalog_says() -> None:
    """Before anything was measured."""
    share_s = prior_share_s([300e12, 300e12, 990e12])
    assert Counter(balance(EVEN, (0, 1, 2), share_s).owners) == {0: 3, 1: 3, 2: 6}


@given(st.integers(1, 6), st.data())
def test_no_move_makes_the_step_longer_or_leaves_anybody_out(size: int, data: st.DataObject) -> None:
    """Every share has one owner, each rank at least one share, and none more than after the loss of a peer."""
    members = tuple(range(size))
    num_shares = data.draw(st.integers(size, 24))
    share_s = {rank: data.draw(st.floats(0.01, 100.0)) for rank in members}
    owners = assign_shares(num_shares, members)
    found = balance(owners, members, share_s)
    before, after = Counter(owners), Counter(found.owners)
    assert set(after) == set(members)
    assert sum(after.values()) == num_shares
    if found.reason:
        slowest = [max(counts[rank] * share_s[rank] for rank in members) for counts in (before, after)]
        assert slowest[1] <= (1 - LEAST_GAIN) * slowest[0]
        assert max(after.values()) <= -(-num_shares // max(1, size - 1))
        assert list(found.owners) == sorted(found.owners), "neighbouring shares add up where they lie"


@pytest.mark.parametrize("num", [1, 2])
def test_one_or_two_ranks_are_judged_too(num: int) -> None:
    """The median of two is between them: both may be near it."""
    assert slow_ranks(dict.fromkeys(range(num), 2.0)) == {}
