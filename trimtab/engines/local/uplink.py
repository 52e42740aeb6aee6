"""An agent's connection to the coordinator: kept up, come what may, and nothing said over it is lost."""

import errno
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from trimtab.engines.local.peers import Peer
from trimtab.policy import events, host_wire, wire
from trimtab.policy.codec import CodecError, from_json, to_json
from trimtab.policy.coordinator import ORDER_KINDS, AgentOrder, Line

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
"""Between two tries to connect; each pause is twice the one before."""
_ANSWER_S = 3.0
"""How long a connection may take to be made, and to be welcomed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who connects, and what for.

    Args:
        token: Of the run.
        versions: What must be the same on every host.
        running: Tells [rank, incarnation] of the rank processes of this host.
        on_welcome: Called at every connection, before any order.
        on_answer: Called whenever the coordinator shows that it works.
        carry_out: Does what it is told, before it returns.
        on_shown: Takes what people want to see.
    """

    token: str
    versions: dict[str, str]
    running: Callable[[], tuple[tuple[int, int], ...]]
    carry_out: Callable[[AgentOrder], None]
    on_welcome: Callable[[host_wire.Welcome], None] = lambda welcome: None
    on_answer: Callable[[], None] = lambda: None
    on_shown: Callable[[host_wire.Shown], None] = lambda shown: None
    name: str = field(default_factory=lambda: secrets.token_hex(8))


class Uplink:
    """The link of one agent. Call ``turn`` often; reports wait while there is no connection.

    Args:
        address: Of the coordinator.
        beat_s: Between two Pings.

    Attributes:
        answered_s: When the newest Ping that was answered had been sent; at first, when this was made.
        refusal: Why the coordinator does not want this host; None if it has not said so.
    """

    def __init__(
        self, address: tuple[str, int], selector: selectors.BaseSelector, caller: Caller, *, beat_s: float
    ) -> None:
        self._address, self._selector, self._caller, self._beat_s = address, selector, caller, beat_s
        self._peer: Peer | None = None
        self._connecting: socket.socket | None = None
        self._nonce = ""
        self._is_welcome = False
        self._started_s = 0.0
        self._pause_s, self._next_try_s = _FIRST_PAUSE_S, 0.0
        self._reports: list[host_wire.Report] = []
        self._num_reports = 0
        self._num_orders = 0
        self._pings: dict[int, float] = {}
        self._num_pings = 0
        self._next_ping_s = 0.0
        self.answered_s = time.monotonic()
        self.refusal: str | None = None
        self.problem = "nobody has answered yet"

    @property
    def is_connected(self) -> bool:
        """Whether the coordinator has welcomed this connection."""
        return self._is_welcome

    @property
    def is_heard(self) -> bool:
        """Whether the coordinator has every report."""
        return not self._reports

    @property
    def own_address(self) -> str | None:
        """The address of this host on the way to the coordinator; None without a connection."""
        return self._peer.own_address if self._peer is not None and self._peer.is_open else None

    def report(self, event: events.Event, lines: Sequence[Line] = ()) -> None:
        """Say what happened. Signs of life are for now, and are not kept; all else arrives once, and in order."""
        self._num_reports += 1
        report = host_wire.Report(
            number=self._num_reports,
            event=to_json(event),
            records=tuple([line.kind, line.t_ns, dict(line.fields)] for line in lines),
        )
        is_beat = isinstance(event, events.Received) and isinstance(event.message, wire.Beat)
        if not is_beat:
            self._reports.append(report)
        if self._is_welcome and self._peer is not None:
            self._peer.send(report)

    def turn(self) -> None:
        """Connect if need be, and show signs of life."""
        now_s = time.monotonic()
        if self._peer is None and self._connecting is None:
            if now_s >= self._next_try_s and self.refusal is None:
                self._try(now_s)
        elif not self._is_welcome and now_s - self._started_s > _ANSWER_S:
            self.drop(f"no answer within {_ANSWER_S:g} s")
        if self._is_welcome and self._peer is not None and now_s >= self._next_ping_s:
            self._ping(now_s)

    def drop(self, problem: str) -> None:
        """Give up the present connection, and try another."""
        self.problem = problem
        if self._connecting is not None:
            self._end_connecting().close()
            self._rest()
        elif self._peer is not None:
            self._peer.close(problem)

    def close(self) -> None:
        """For good."""
        self.refusal = self.refusal or "closed"
        self.drop("closed")

    # Connecting.

    def _try(self, now_s: float) -> None:
        self._started_s = now_s
        self._connecting = connecting = socket.socket(_family(self._address), socket.SOCK_STREAM)
        connecting.setblocking(False)
        code = connecting.connect_ex(self._address)
        self._selector.register(connecting, selectors.EVENT_WRITE, self._on_connected)
        if code not in (0, errno.EINPROGRESS):
            self.drop(f"{self._address[0]}:{self._address[1]}: {errno.errorcode.get(code, code)}")

    def _on_connected(self) -> None:
        if self._connecting is None:
            return
        code = self._connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.drop(f"{self._address[0]}:{self._address[1]}: {errno.errorcode.get(code, code)}")
            return
        self._peer = Peer(
            self._end_connecting(),
            self._selector,
            host_wire.FROM_COORDINATOR,
            on_message=self._on_message,
            on_end=self._on_end,
        )

    def _end_connecting(self) -> socket.socket:
        assert self._connecting is not None
        connecting, self._connecting = self._connecting, None
        self._selector.unregister(connecting)
        return connecting

    def _on_end(self, peer: Peer, problem: str) -> None:
        self.problem = problem or "the connection was closed"
        self._peer = None
        self._is_welcome = False
        self._pings.clear()
        self._rest()

    def _rest(self) -> None:
        self._next_try_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    # What comes in.

    def _on_message(self, peer: Peer, message: wire.Message) -> None:
        match message:
            case host_wire.Challenge():
                self._join(peer, message)
            case host_wire.Welcome():
                self._on_welcome(peer, message)
            case host_wire.Refuse():
                self.refusal = message.reason
            case host_wire.Order() if self._is_welcome:
                self._on_order(message)
            case host_wire.Pong() if self._is_welcome:
                self.answered_s = max(self.answered_s, self._pings.pop(message.number, 0.0))
                self._forget(message.reports)
                self._caller.on_answer()
            case host_wire.Shown() if self._is_welcome:
                self._caller.on_shown(message)
            case _:
                raise wire.WireError(f"{type(message).__name__} out of turn")

    def _join(self, peer: Peer, challenge: host_wire.Challenge) -> None:
        caller = self._caller
        self._nonce = secrets.token_hex(16)
        peer.send(
            host_wire.Join(
                name=caller.name,
                address=peer.own_address,
                nonce=self._nonce,
                proof=host_wire.prove(caller.token, role="agent", nonce=challenge.nonce, name=caller.name),
                versions=caller.versions,
                running=caller.running(),
                orders=self._num_orders,
                t_ns=time.monotonic_ns(),
                wall_s=time.time(),
            )
        )

    def _on_welcome(self, peer: Peer, welcome: host_wire.Welcome) -> None:
        caller = self._caller
        if not host_wire.is_proven(
            welcome.proof, caller.token, role="coordinator", nonce=self._nonce, name=caller.name
        ):
            raise wire.WireError("whoever listens there does not know this run's token")
        self._is_welcome = True
        self._pause_s = _FIRST_PAUSE_S
        self.answered_s = time.monotonic()
        self._forget(welcome.reports)
        caller.on_welcome(welcome)
        for report in self._reports:
            peer.send(report)
        self._ping(time.monotonic())

    def _on_order(self, order: host_wire.Order) -> None:
        if order.number <= self._num_orders:
            return
        self._num_orders = order.number
        try:
            action = from_json(order.action, ORDER_KINDS)
        except CodecError as error:
            raise wire.WireError(str(error)) from error
        self._caller.carry_out(action)

    def _ping(self, now_s: float) -> None:
        self._num_pings += 1
        self._pings[self._num_pings] = now_s
        self._next_ping_s = now_s + self._beat_s
        if self._peer is not None:
            self._peer.send(host_wire.Ping(number=self._num_pings, orders=self._num_orders))

    def _forget(self, number: int) -> None:
        self._reports = [report for report in self._reports if report.number > number]


def _family(address: tuple[str, int]) -> socket.AddressFamily:
    with suppress(OSError):
        return socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
    return socket.AF_INET
