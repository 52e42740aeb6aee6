"""Ownership and order of addition: wrong here means other bits, or a share computed twice or never."""

from hypothesis import given
from hypothesis import strategies as st

from trimtab.plan.shares import (
    assign_shares,
    blocks_at,
    keep_only,
    own_blocks,
    shares_of,
    take_over,
    top_level,
)

worlds = st.integers(1, 12).flatmap(
    lambda shares: st.tuples(
        st.just(shares),
        st.lists(st.integers(0, 20), min_size=1, max_size=shares, unique=True).map(sorted),
    )
)


@given(worlds)
def test_every_share_has_exactly_one_owner(world: tuple[int, list[int]]) -> None:
    """A share without an owner would be missing from the batch without a word."""
    num_shares, members = world
    owners = assign_shares(num_shares, members)
    assert len(owners) == num_shares
    assert set(owners) == set(members)
    loads = [len(shares_of(rank, owners)) for rank in members]
    assert max(loads) - min(loads) <= 1


@given(worlds, st.data())
def test_survivors_keep_what_they_hold_and_orphans_are_spread(
    world: tuple[int, list[int]], data: st.DataObject
) -> None:
    """Recomputing what a survivor holds wastes the time that exact recovery saves."""
    num_shares, members = world
    before = assign_shares(num_shares, [*members, 99])
    held = {rank: shares_of(rank, before) for rank in members if data.draw(st.booleans())}
    owners = take_over(num_shares, members, held)
    assert len(owners) == num_shares
    for rank, shares in held.items():
        assert set(shares) <= set(shares_of(rank, owners))


def test_a_share_held_twice_is_owned_once() -> None:
    """After two re-formings two ranks may hold one share; adding both would count it twice."""
    assert take_over(3, [0, 1], {0: [0, 1], 1: [1, 2]}) == (0, 0, 1)


def test_lost_shares_are_left_out_when_rescaling() -> None:
    """`rescale` must not compute them, or the survivors would pay for a batch that is not counted."""
    assert keep_only(4, [0, 2], {0: [0], 2: [2, 3]}) == (0, -1, 2, 2)


@given(st.integers(1, 33), st.data())
def test_blocks_cover_the_owned_shares_exactly(num_shares: int, data: st.DataObject) -> None:
    """A block that reaches beyond the owned shares would add gradients that nobody computed."""
    owned = data.draw(st.sets(st.integers(0, num_shares - 1)))
    blocks = own_blocks(sorted(owned), num_shares)
    covered = [share for block in blocks for share in range(block.first, block.first + block.count)]
    assert covered == sorted(owned)
    for block in blocks:
        assert block in blocks_at(block.level, num_shares)


@given(st.integers(1, 33))
def test_the_root_covers_all_shares(num_shares: int) -> None:
    """The tree must end in one sum."""
    (root,) = blocks_at(top_level(num_shares), num_shares)
    assert (root.first, root.count) == (0, num_shares)
