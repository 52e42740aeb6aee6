"""What a route is asked for, and what it answers."""

from dataclasses import dataclass

from trimtab.plan.program import OperatorKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One collective of one group.

    Args:
        kind: ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER or ALL_TO_ALL.
        elements: That each rank puts in: the whole tensor for sums and all-to-all, the own piece for a gather.
        piece: Elements that one rank ends up with of a sum that is scattered, or sends to each other rank in an
            all-to-all; of a sum that all get, an n-th.
        places: For each rank of the group, in order, the place of each level that it stands on, smallest first:
            ``((node, rack, site), …)``.
    """

    kind: OperatorKind
    elements: int
    piece: int
    places: tuple[tuple[int | None, ...], ...]

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return len(self.places)


@dataclass(frozen=True, slots=True)
class Send:
    """Elements that one rank of a group sends to another in one run of the collective."""

    source: int
    target: int
    elements: int
