"""What happens to the processes of a run, and what is done about it: the words that decisions are made in."""

from dataclasses import dataclass
from enum import StrEnum

from trimtab.policy.wire import Message


class Cause(StrEnum):
    """Why a rank is lost; budgets are counted per cause."""

    EXITED = "exited"
    PREEMPTED = "preempted"
    """Somebody outside told its process to end: its place was taken away."""
    STOPPED = "stopped"
    """Its process was stopped, and with it the heartbeat."""
    SILENT = "silent"
    """No heartbeat, and nobody knows why."""
    STUCK = "stuck"
    """It beats, and its main thread gets nowhere: it hangs."""
    LIVELOCK = "livelock"
    """Its main thread is busy, and its peers wait for a step that it does not finish."""
    CORRUPT = "corrupt"
    """It computes wrong numbers: other ranks get other bits, and agree."""
    NOT_PARKED = "not_parked"
    START_TIMEOUT = "start_timeout"
    USER_ERROR = "user_error"
    HOST_LOST = "host_lost"
    HOST_LEFT = "host_left"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One loss: what was lost, why, when it happened and when it was declared (nanoseconds of the agent's clock)."""

    rank: int
    incarnation: int
    cause: Cause
    detail: str
    step: int
    fault_ns: int
    declared_ns: int


# Events that are no wire messages.


@dataclass(frozen=True, kw_only=True, slots=True)
class Spawned:
    """A process was started for a rank."""

    rank: int
    incarnation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A rank said something."""

    rank: int
    incarnation: int
    message: Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Exited:
    """A rank's process is gone. ``how`` reads 'exit code 1' or 'signal SIGKILL'; ``fault_ns`` is its last sign of life."""

    rank: int
    incarnation: int
    how: str
    is_clean: bool
    fault_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped:
    """The system says that a rank's process is stopped, and not dead."""

    rank: int
    incarnation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StopAsked:
    """Somebody wants the run to end cleanly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResizeAsked:
    """Somebody wants the run to go on with so many devices."""

    devices: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HostJoined:
    """The agent of a host answers, for the first time or again.

    Args:
        name: Of the agent's process, by which it is known when it comes back.
        address: At which other hosts reach this one.
        running: [rank, incarnation] of the rank processes that it has.
    """

    host: int
    name: str
    address: str
    running: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLost:
    """A host is not reached any more: dead, cut off, or its agent was asked to leave. ``fault_ns``: last heard of."""

    host: int
    reason: str
    is_leaving: bool
    fault_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Abandoned:
    """The agent that the run was started by does not wait any longer."""

    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorBack:
    """Whoever decides was away: nobody's silence in that time counts against them."""


Event = (
    Spawned
    | Received
    | Exited
    | Stopped
    | Tick
    | StopAsked
    | ResizeAsked
    | HostJoined
    | HostLost
    | Abandoned
    | CoordinatorBack
)


# Actions, carried out by the agent in order.


@dataclass(frozen=True, kw_only=True, slots=True)
class Tell:
    """Send a message to a rank."""

    rank: int
    message: Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """End a rank's process and all its children with SIGKILL."""

    rank: int
    incarnation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Spawn:
    """Start a process for a rank."""

    rank: int
    incarnation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Declare:
    """Record a loss in the journal."""

    fault: Fault


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The run is over; ``error`` is the first cause when it failed, ``is_input_error`` says that the input was wrong.

    ``is_stopped``: it was asked to stop before any rank could say so itself.
    ``is_cut_off``: hosts could not be reached for too long; what is left of the run may be continued elsewhere.
    """

    is_failed: bool
    is_stopped: bool = False
    error: str | None = None
    is_input_error: bool = False
    is_cut_off: bool = False


Action = Tell | Kill | Spawn | Declare | End
