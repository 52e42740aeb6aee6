"""Which hosts may go on when not all of them can be reached.

A host that is cut off cannot be told from one that died. So an epoch is formed only where a majority of the hosts of
the last epoch that committed a step can be reached; of an even number, half of them are enough on the side of the
first host. Two sides can never both have that, and what follows on one side is the only history.
"""

from dataclasses import dataclass, replace

FIRST = 0
"""The host on which the run was started; the coordinator is there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """The hosts of a run, and which of them count.

    Args:
        placement: Host of each rank, in order of rank; empty where there is one host only.
        reachable: Hosts whose agents answer.
        voters: Hosts that were reachable in the newest epoch that committed a step; at first all.
        entered: Hosts that were reachable when the present epoch was formed.
        apart_since_s: Since when some host that is needed, or a quorum, has been missing; None if nothing is.
        patience_s: How long that is waited for.
    """

    placement: tuple[int, ...] = ()
    reachable: frozenset[int] = frozenset({FIRST})
    voters: frozenset[int] = frozenset({FIRST})
    entered: frozenset[int] = frozenset({FIRST})
    apart_since_s: float | None = None
    patience_s: float = 60.0

    def of(self, rank: int) -> int:
        """The host that a rank belongs to."""
        return self.placement[rank] if self.placement else FIRST

    def ranks(self, host: int) -> tuple[int, ...]:
        """The ranks that belong to a host."""
        return tuple(rank for rank, at in enumerate(self.placement) if at == host)

    def is_reachable(self, rank: int) -> bool:
        """Whether the host of a rank answers."""
        return self.of(rank) in self.reachable

    @property
    def missing(self) -> tuple[int, ...]:
        """Hosts that do not answer."""
        return tuple(sorted(set(self.placement) - self.reachable))

    @property
    def has_quorum(self) -> bool:
        """Whether an epoch may be formed here.

        >>> three = frozenset({0, 1, 2})
        >>> [Hosts(voters=three, reachable=frozenset(here)).has_quorum for here in ({0}, {0, 2}, {1, 2})]
        [False, True, True]
        """
        present = self.voters & self.reachable
        if 2 * len(present) == len(self.voters):
            return min(self.voters) in present  # The first host, unless it was lost before.
        return 2 * len(present) > len(self.voters)

    def formed(self) -> "Hosts":
        """An epoch begins with those that are reachable."""
        return replace(self, entered=self.reachable, apart_since_s=None)

    def committed(self) -> "Hosts":
        """The present epoch has committed a step: its hosts vote from now on."""
        return self if self.voters == self.entered else replace(self, voters=self.entered)

    def joined(self, host: int) -> "Hosts":
        """A host answers."""
        there = replace(self, reachable=self.reachable | {host})
        is_whole = there.has_quorum and not there.missing
        return replace(there, apart_since_s=None) if is_whole else there

    def lost(self, host: int, now_s: float) -> "Hosts":
        """A host does not answer any more."""
        since_s = now_s if self.apart_since_s is None else self.apart_since_s
        return replace(self, reachable=self.reachable - {host}, apart_since_s=since_s)

    def lacks(self) -> str:
        """What is missing for a quorum, for people; empty if nothing is."""
        if self.has_quorum:
            return ""
        answer = len(self.voters & self.reachable)
        return f"{answer} of the {len(self.voters)} hosts that committed last answer, and that is no majority"
