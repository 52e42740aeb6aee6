"""Who owns which share: by what devices promise first, by what was measured then, the same on every rank."""

from collections import Counter

from tests.runtime.stored.crews import Unwatched
from trimtab.policy.slowness import prior_share_s
from trimtab.runtime.balancing import Balancer
from trimtab.runtime.process_groups import Group, Interrupt


def balancer(every: int = 4, **changes: object) -> Balancer:
    return Balancer(
        num_shares=12,
        every=every,
        watch=Unwatched(),  # type: ignore[arg-type]  # it answers to every name
        tell=lambda kind, fields: None,
        **changes,  # type: ignore[arg-type]
    )


def alone() -> Group:
    return Group(members=(0,), rank=0, epoch=1, store=None, kind="cpu", interrupt=Interrupt())


def test_stronger_cards_have_more_before_anything_is_measured() -> None:
    """A pool of old and new cards would begin at the pace of the oldest."""
    made = balancer(prior_s=prior_share_s([300e12, 300e12, 990e12]))
    made.enter((0, 1, 2), 7)
    assert Counter(made.owners(7, alone())) == {0: 3, 1: 3, 2: 6}
    made.enter((0, 2), 9)
    assert Counter(made.owners(9, alone())) == {0: 3, 2: 9}


def test_what_is_off_gives_all_the_same() -> None:
    """A user who wants plain ownership gets it on any cards."""
    made = balancer(every=0, prior_s=prior_share_s([300e12, 300e12, 990e12]))
    made.enter((0, 1, 2), 0)
    assert Counter(made.owners(8, alone())) == {0: 4, 1: 4, 2: 4}
