"""From which state do ranks go on together? The newest of which every piece still exists somewhere among them.

After a loss some ranks may stand one step further than others, some hold copies of older states, their own and those of
their wards, and some are new and hold nothing. What they hold is compared by step and layout; live state and a copy of the
same step are worth the same.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """The state of one position of a layout, as one rank has it in memory.

    Args:
        holder: The rank that has it.
        slot: Where, in the holder's own count.
        size: Positions of the layout.
        position: Whose state it is.
        step: Committed steps that are in it.
        updates: Of them, those that were applied.
        is_live: Whether the holder would train on from it, and need not copy it.
        is_ready: Whether the holder has all sums of the next step, and all agreed on it unless somebody died meanwhile.
    """

    holder: int
    slot: int
    size: int
    position: int
    step: int
    updates: int
    is_live: bool
    is_ready: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Ground:
    """What ranks go on from.

    Args:
        step: Committed steps.
        updates: Of them, those that were applied.
        size: Positions of the layout that it is in.
        holdings: By position, who has it; who has it live comes first.
    """

    step: int
    updates: int
    size: int
    holdings: Mapping[int, tuple[Holding, ...]]

    @property
    def is_live(self) -> bool:
        """Whether it is what ranks hold now, every piece of it, and no copy of before."""
        return all(those[0].is_live for those in self.holdings.values())


def catch_up(holdings: Sequence[Holding]) -> tuple[tuple[Holding, ...], frozenset[int]]:
    """Bring ranks forward that have all of a step which others have committed.

    Nobody commits a step before everybody has said that its sums are there. So if anybody has, those who have not can.

    Returns: What is held then, and the ranks that must apply what they have.
    """
    newest = max((held.step for held in holdings if held.is_live), default=0)
    behind = {held.holder for held in holdings if held.is_live and held.is_ready and held.step == newest - 1}
    moved = tuple(
        replace(held, step=newest, updates=held.updates + 1, is_ready=False)
        if held.is_live and held.holder in behind and held.step == newest - 1
        else held
        for held in holdings
    )
    return moved, frozenset(behind)


def newest_ground(
    holdings: Sequence[Holding], covers: Callable[[int, frozenset[int]], bool]
) -> Ground | None:
    """The newest state that exists whole; None if there is none.

    Args:
        holdings: Of all ranks that live.
        covers: Whether some positions of a layout of some size have every piece of the state between them.
    """
    found: defaultdict[tuple[int, int], list[Holding]] = defaultdict(list)
    for held in holdings:
        found[held.step, held.size].append(held)
    num_live = {key: sum(held.is_live for held in group) for key, group in found.items()}
    for step, size in sorted(found, key=lambda key: (key[0], num_live[key], key[1]), reverse=True):
        group = found[step, size]
        if not covers(size, frozenset(held.position for held in group)):
            continue
        by_position: defaultdict[int, list[Holding]] = defaultdict(list)
        for held in sorted(group, key=lambda held: (not held.is_live, held.holder, held.slot)):
            by_position[held.position].append(held)
        return Ground(
            step=step,
            updates=group[0].updates,
            size=size,
            holdings={position: tuple(those) for position, those in sorted(by_position.items())},
        )
    return None


def buddies(members: Sequence[int], domains: Mapping[int, object]) -> dict[int, int]:
    """Who keeps a copy of whose state: the next rank of another failure domain, else the next one.

    Each rank is the buddy of one other where domains are of equal size.

    Args:
        members: Ranks by position.
        domains: What fails together, by rank: a node.

    >>> buddies([0, 1, 2, 3], {0: "a", 1: "a", 2: "b", 3: "b"})
    {0: 2, 1: 3, 2: 0, 3: 1}
    >>> buddies([0, 1, 2], {})
    {0: 1, 1: 2, 2: 0}
    """
    size = len(members)
    for shift in range(1, size):
        pairs = {rank: members[(place + shift) % size] for place, rank in enumerate(members)}
        if all(domains.get(rank, rank) != domains.get(buddy, buddy) for rank, buddy in pairs.items()):
            return pairs
    return {rank: members[(place + 1) % size] for place, rank in enumerate(members)} if size > 1 else {}
