"""Is the newest state that still exists whole found, whoever holds it?"""

from collections.abc import Callable

from trimtab.policy.holdings import Holding, buddies, catch_up, newest_ground


def live(rank: int, step: int, *, size: int = 4, position: int | None = None, ready: bool = False) -> Holding:
    place = rank if position is None else position
    return Holding(
        holder=rank, slot=0, size=size, position=place, step=step, updates=step, is_live=True, is_ready=ready
    )


def copy(holder: int, position: int, step: int, slot: int = 1) -> Holding:
    return Holding(
        holder=holder, slot=slot, size=4, position=position, step=step, updates=step, is_live=False
    )


def all_of(number: int) -> Callable[[int, frozenset[int]], bool]:
    return lambda size, positions: len(positions) == min(size, number)


def test_a_copy_of_the_step_that_others_hold_live_costs_no_step():
    """Rank 2 is gone; its buddy copied it at the very step where all stand."""
    held = [live(0, 7), live(1, 7), live(3, 7), copy(3, 2, 7), copy(3, 2, 5, 2), copy(0, 0, 5)]
    ground = newest_ground(held, all_of(4))
    assert ground is not None
    assert (ground.step, ground.holdings[2][0].holder) == (7, 3)


def test_otherwise_all_go_back_to_the_step_of_which_every_copy_is_there():
    """Live state one step on is worth nothing without the piece that is gone."""
    held = [live(rank, 7) for rank in (0, 1, 3)]
    held += [copy(rank, rank, 5) for rank in (0, 1, 3)] + [copy(3, 2, 5, 2)]
    ground = newest_ground(held, all_of(4))
    assert ground is not None
    assert ground.step == 5


def test_a_rank_and_its_buddy_gone_leave_nothing_in_memory():
    """Then only a checkpoint is left, and that must be said and not guessed around."""
    held = [live(0, 7), live(1, 7), copy(0, 0, 5), copy(1, 1, 5)]
    assert newest_ground(held, all_of(4)) is None


def test_who_has_all_sums_of_a_step_that_somebody_committed_can_commit_it_too():
    """Nobody commits before everybody has them; going back would part the run in two."""
    held, behind = catch_up([live(0, 7), live(1, 6, ready=True), live(2, 6, ready=True), copy(1, 1, 6)])
    assert behind == {1, 2}
    assert [(holding.step, holding.updates) for holding in held if holding.is_live] == [(7, 7)] * 3
    assert held[3].step == 6, "a copy is of the step that it was taken at"


def test_who_lacks_a_sum_of_the_newest_step_is_not_moved():
    """A newcomer with an old checkpoint must not claim the newest step."""
    held, behind = catch_up([live(0, 7), live(1, 6), live(2, 4)])
    assert not behind
    assert [holding.step for holding in held] == [7, 6, 4]


def test_of_two_layouts_at_one_step_that_is_taken_in_which_most_ranks_stand():
    """A move that was interrupted has left both; less is moved that way."""
    old = [live(rank, 7) for rank in (0, 1, 2)] + [live(3, 7)]
    new = [live(0, 7, size=2, position=0), live(1, 7, size=2, position=1)]
    ground = newest_ground([*new, *old], all_of(4))
    assert ground is not None
    assert ground.size == 4


def test_a_buddy_stands_in_another_failure_domain_wherever_there_is_one():
    """A node that dies takes a copy along that stands in it."""
    domains = {rank: rank // 2 for rank in range(6)}
    assert all(domains[rank] != domains[buddy] for rank, buddy in buddies(range(6), domains).items())
    assert buddies([4], {}) == {}
