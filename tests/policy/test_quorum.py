"""Which side may go on: never two of them, whoever cannot reach whom."""

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.policy.quorum import Hosts


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 4, 5, 6])
def test_no_two_sides_of_a_cut_have_a_quorum(num_hosts: int) -> None:
    """Two sides that both commit would be two histories."""
    voters = frozenset(range(num_hosts))
    for side in chain.from_iterable(combinations(voters, size) for size in range(num_hosts + 1)):
        here, there = frozenset(side), voters - frozenset(side)
        sides = [Hosts(voters=voters, reachable=each).has_quorum for each in (here, there)]
        assert sum(sides) == 1


@given(st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=6))
def test_voters_follow_what_was_committed_and_never_split(sides: list[set[int]]) -> None:
    """After host upon host was lost, the one side that goes on is a side of the one that went on before."""
    hosts = Hosts(placement=tuple(range(5)), voters=frozenset(range(5)))
    for side in sides:
        before = hosts.voters
        other = Hosts(voters=before, reachable=before - frozenset(side))
        here = Hosts(voters=before, reachable=frozenset(side))
        assert not (here.has_quorum and other.has_quorum)
        if here.has_quorum:
            hosts = here.formed().committed()
            assert hosts.voters == frozenset(side)


def test_an_epoch_that_committed_nothing_changes_no_vote() -> None:
    """A side that formed and was lost before its first commit is no history that anybody must follow."""
    three = Hosts(placement=(0, 1, 2), reachable=frozenset({0, 1, 2}), voters=frozenset({0, 1, 2}))
    two = three.lost(2, 1.0).formed()
    assert two.voters == frozenset({0, 1, 2})
    assert two.committed().voters == frozenset({0, 1})
    assert two.lost(1, 2.0).lacks() == "1 of the 3 hosts that committed last answer, and that is no majority"
