"""What the agents of hosts and the coordinator say to each other. See ``wire`` for the frames.

Whoever connects is challenged with a number that was never used, so that a proof that somebody overheard is worth
nothing; the coordinator proves itself likewise, for an agent starts what it is told to start.

Reports and orders are numbered, from 1, per host. Whoever sends one keeps it until the other end says that it has it,
and sends it again over the next connection: a coordinator that dies, or a link that breaks, loses none of them.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Any

from trimtab.policy.wire import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Challenge(Message):
    """Coordinator to whoever connects: prove that you know the run's token."""

    nonce: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Join(Message):
    """Agent to coordinator: I am, or will be, a host of this run.

    Args:
        name: Of the agent's process, a random word: one that comes back is known by it.
        address: At which other hosts reach this one.
        nonce: The agent's own challenge.
        proof: Of ``nonce`` of the coordinator, and of who this is.
        versions: What must be the same on every host, by name.
        running: [rank, incarnation] of every rank process that runs here.
        orders: Number of the last order that was carried out.
        t_ns: Now, on the agent's monotonic clock.
        wall_s: Now, on its wall clock, seconds since 1970; to be shown, and for nothing else.
    """

    name: str
    address: str
    nonce: str
    proof: str
    versions: dict[str, str]
    running: tuple[tuple[int, int], ...]
    orders: int
    t_ns: int
    wall_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome(Message):
    """Coordinator to agent: you are host number ``host``.

    Args:
        proof: Of the agent's nonce.
        reports: Number of the last report of yours that I have.
        launch: What ranks are started with.
        lease_s: How long after its last answered Ping a host may take part in an epoch.
        patience_s: How long a host that cannot reach the coordinator tries.
    """

    host: int
    proof: str
    reports: int
    launch: dict[str, Any]
    lease_s: float
    patience_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Refuse(Message):
    """Coordinator to agent: you cannot be a host of this run; do not come back."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Report(Message):
    """Agent to coordinator: something happened here.

    Args:
        event: The event, as JSON.
        records: [kind, t_ns, fields] of each line for the journal that goes with it.
    """

    number: int
    event: dict[str, Any]
    records: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Order(Message):
    """Coordinator to agent: do this, an action as JSON."""

    number: int
    action: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ping(Message):
    """Agent to coordinator, several times within a lease. ``orders``: number of the last one carried out."""

    number: int
    orders: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pong(Message):
    """Coordinator to agent: I have heard this Ping, and your reports up to number ``reports``."""

    number: int
    reports: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown(Message):
    """Coordinator to the first host: something that people want to see. Lost with the connection."""

    kind: str
    t_ns: int
    fields: dict[str, Any] = field(default_factory=dict)


FROM_AGENT = {kind.__name__: kind for kind in (Join, Report, Ping)}
FROM_COORDINATOR = {kind.__name__: kind for kind in (Challenge, Welcome, Refuse, Order, Pong, Shown)}


def prove(token: str, *, role: str, nonce: str, name: str) -> str:
    """The proof that ``role`` (agent or coordinator) knows the run's token: HMAC-SHA256 over what was asked."""
    said = f"{role}/{nonce}/{name}".encode()
    return hmac.new(token.encode(), said, hashlib.sha256).hexdigest()


def is_proven(proof: str, token: str, *, role: str, nonce: str, name: str) -> bool:
    """Whether a proof is right; compared in constant time."""
    expected = prove(token, role=role, nonce=nonce, name=name)
    return hmac.compare_digest(proof.encode(), expected.encode())
