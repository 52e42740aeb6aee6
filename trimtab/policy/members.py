"""What is known of a run's ranks, and what a decision about them is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from trimtab.policy.budgets import Budget, Loss
from trimtab.policy.events import Action, Cause, Tell
from trimtab.policy.quorum import Hosts
from trimtab.policy.seating import Seating
from trimtab.policy.wire import Failed, Message
from trimtab.terms import OnLoss, Phase


class Standing(StrEnum):
    """Where a rank stands."""

    STARTING = "starting"
    PARKED = "parked"
    TRAINING = "training"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Deadlines in seconds, all on the agent's clock.

    ``heartbeat_s``: silence of the rank's heartbeat thread. ``progress_s``: its main thread gets nowhere though it
    waits for nobody. ``phases_s`` overrides the latter by phase. ``step_s``: it works at one step, whatever progress it
    tells. ``start_s``: from spawn to the first word. ``park_s``: from a fence until a rank that still beats has parked.
    ``trouble_s``: from a broken collective until it counts as the cause, for the death that usually explains it is noticed
    milliseconds later. ``stop_s``: from the wish to stop until a step that has not ended is given up, so that what is left
    of the grace is enough to save.
    """

    heartbeat_s: float = 2.0
    progress_s: float = 60.0
    step_s: float = 600.0
    phases_s: Mapping[Phase, float] = field(default_factory=dict)
    start_s: float = 120.0
    park_s: float = 30.0
    trouble_s: float = 0.25
    stop_s: float = 15.0
    budget: Budget = field(default_factory=Budget)

    def progress_in(self, phase: Phase) -> float:
        """The limit that holds in a phase."""
        return self.phases_s.get(phase, self.progress_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """What the agent knows of one rank's process.

    ``stepping_since_s``: since when it works at its present step; the time of saves and evaluations is not counted.
    """

    rank: int
    incarnation: int
    standing: Standing = Standing.STARTING
    spawned_at_s: float
    heard_at_s: float
    moved_at_s: float
    stepping_since_s: float = 0.0
    is_connected: bool = False
    is_stopped: bool = False
    progress: int = -1
    phase: Phase = Phase.START
    operation: str = ""
    is_waiting: bool = False
    step: int = 0
    committed: int = 0
    held: tuple[int, ...] = ()
    store_port: int = 0
    store_host: str = "127.0.0.1"
    is_condemned: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Everything that a decision depends on.

    ``seating``: who of the living takes part. ``roster``: who does in this epoch, by position; other members of the epoch
    are spares, who hand over what they hold and wait. ``leaving``: ranks that were told to go.
    ``stop_asked_s``: when the run was asked to stop; None: it was not. ``is_hurried``: a step was given up for it.
    """

    num_shares: int
    on_loss: OnLoss
    limits: Limits
    is_replacing: bool = False
    seating: Seating = field(default_factory=Seating)
    hosts: Hosts = field(default_factory=Hosts)
    epoch: int = 0
    is_formed: bool = False
    fenced_at_s: float = 0.0
    roster: tuple[int, ...] = ()
    members: Mapping[int, Member] = field(default_factory=dict)
    incarnations: Mapping[int, int] = field(default_factory=dict)
    condemned: Mapping[int, tuple[Cause, str]] = field(default_factory=dict)
    failures: Mapping[int, Failed] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    stop_asked_s: float | None = None
    is_hurried: bool = False
    is_over: bool = False
    is_admitting: bool = False
    trouble: "BrokenCollective | None" = None
    leaving: frozenset[int] = frozenset()

    @property
    def is_stopping(self) -> bool:
        """Whether the run was asked to stop."""
        return self.stop_asked_s is not None

    def having(self, member: Member) -> "State":
        """The same, with what is known of a member now."""
        return replace(self, members={**self.members, member.rank: member})

    def tell_all(self, message: Message, *, standing: Standing) -> tuple[Action, ...]:
        """A message to everybody who stands so."""
        return tuple(
            Tell(rank=member.rank, message=message)
            for member in self.members.values()
            if member.standing is standing
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenCollective:
    """A rank said that its peers are gone. Usually a death is reported next, and is the cause."""

    rank: int
    error: str
    t_ns: int
    since_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The next state, what to do, and why (empty when nothing is worth saying)."""

    state: State
    actions: tuple[Action, ...] = ()
    reason: str = ""
