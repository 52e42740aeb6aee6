"""`python -m trimtab.engines.local.coordinator`: decides for a run. Its ticket arrives on standard input.

It holds no rank and no file but the journal. It may be killed at any moment: the agent of the first host starts
another, which reads the journal and goes on where this one was, while the ranks train on inside their epoch.
"""

import json
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trimtab.engines.agent_journal import journal_path
from trimtab.engines.launch import Launch, launch_from_json
from trimtab.engines.local.fingerprints import judge_hello, read_fingerprint
from trimtab.engines.local.peers import Peer
from trimtab.ledger import EventKind, encode_event, read_events
from trimtab.policy import events, host_wire, wire
from trimtab.policy.codec import CodecError, from_json, to_json
from trimtab.policy.coordinator import (
    DECIDED,
    EVENT_KINDS,
    ITSELF,
    AgentOrder,
    Coordinator,
    Line,
    Moment,
)
from trimtab.policy.members import State
from trimtab.policy.quorum import FIRST, Hosts
from trimtab.terms.version import __version__

_TICK_S = 0.1
_FAREWELL_S = 10.0
"""How long hosts may take to report their last exits after the run's end."""
_WORTH_SAYING_S = 2.0
"""A difference of wall clocks that people should know of."""
_SAME_CLOCK_NS = 10**9
"""Monotonic clocks that differ by less are one clock, read at both ends of a connection: machines start at any time."""
LEASE_HEARTBEATS, LOST_HEARTBEATS = 1.5, 2.0
"""A host that hears nothing leaves its epoch first, then the others go on without it; in limits of the heartbeat."""


def initial_state(launch: Launch) -> State:
    """What is known of a run before anything has happened."""
    everybody = frozenset(range(launch.hosts))
    return State(
        num_shares=launch.num_shares,
        on_loss=launch.on_loss,
        limits=launch.limits,
        is_replacing=launch.is_replacing,
        seating=launch.seating,
        incarnations=dict.fromkeys(range(launch.devices), launch.first_incarnation - 1),
        hosts=Hosts(
            placement=launch.placement,
            reachable=frozenset(),
            voters=everybody,
            entered=everybody,
            patience_s=launch.patience_s,
        ),
    )


@dataclass(slots=True, kw_only=True)
class Standing:
    """What is known of one host's link."""

    peer: Peer | None = None
    heard_s: float
    offset_ns: int = 0
    """What must be added to times of its monotonic clock."""
    num_sent: int = 0
    has_left: bool = False


class CoordinatorServer:
    """Serves the agents of one attempt until it is over. Call ``run`` once.

    Args:
        launch: What is run.
        token: Of the run.
        first: Name of the first host's agent.
        listener: Where agents connect.
        lifeline: A descriptor that becomes readable when whoever started this is gone.
    """

    def __init__(
        self, launch: Launch, *, token: str, first: str, listener: socket.socket, lifeline: int
    ) -> None:
        self._launch, self._token, self._first = launch, token, first
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._path = journal_path(launch)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fingerprint = read_fingerprint(launch.folder)
        self._coordinator = Coordinator(initial_state(launch), fingerprint=fingerprint)
        self._hosts: dict[int, Standing] = {}
        self._nonces: dict[Peer, tuple[str, int]] = {}
        self._offsets_ns: dict[str, int] = {}
        self._agents: dict[Peer, int] = {}
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._on_connect)
        self._selector.register(lifeline, selectors.EVENT_READ, sys.exit)

    def run(self) -> None:
        """Until the run is over and every host has said its last word."""
        self._go_on()
        ended_s: float | None = None
        while ended_s is None or not self._is_farewell_over(ended_s):
            for key, _ in self._selector.select(_TICK_S):
                key.data()
            self._tick()
            if self._coordinator.conclusion is not None and ended_s is None:
                ended_s = time.monotonic()

    # Before and after.

    def _go_on(self) -> None:
        """Come to where the coordinator before this one was, if there was one."""
        written = read_events(self._path.read_bytes())
        decided = [event for event in written if event.kind == DECIDED]
        for event in decided:
            self._coordinator.replay(event.fields)
        for event in written:
            if event.kind == EventKind.HOST:
                self._offsets_ns[event.fields["name"]] = event.integer("offset_ns")
        now_s = time.monotonic()
        for host in sorted(self._coordinator.state.hosts.reachable):
            self._hosts[host] = Standing(heard_s=now_s)
        if decided:
            self._take(events.CoordinatorBack(), lines=self._lines_of_return(len(decided)))

    def _lines_of_return(self, num_decided: int) -> list[Line]:
        state = self._coordinator.state
        reason = f"the coordinator is back, in epoch {state.epoch}, after {num_decided} lines of its journal"
        if self._coordinator.differences:
            reason += f"; decided otherwise today: {'; '.join(self._coordinator.differences)}"
        fields: dict[str, Any] = {"epoch": state.epoch, "pid": os.getpid()}
        now_ns = time.monotonic_ns()
        return [
            Line(kind=EventKind.COORDINATOR, t_ns=now_ns, fields=fields),
            Line(kind="decision", t_ns=now_ns, fields={"reason": reason}),
        ]

    def _is_farewell_over(self, ended_s: float) -> bool:
        if time.monotonic() - ended_s > _FAREWELL_S:
            return True
        return all(standing.has_left for standing in self._hosts.values())

    # Deciding.

    def _take(
        self, event: events.Event, *, host: int = ITSELF, number: int = 0, lines: Iterable[Line] = ()
    ) -> None:
        """Decide; write down what follows; only then send it."""
        moment = Moment(now_s=time.monotonic(), now_ns=time.monotonic_ns(), host=host, number=number)
        taken = self._coordinator.take(event, moment, lines)
        if taken.lines:
            text = b"".join(encode_event(line.kind, line.t_ns, **line.fields) for line in taken.lines)
            os.write(self._file, text)
            for line in taken.lines:
                self._show(line)
        for line in taken.shown:
            self._show(line)
        self._send_orders()

    def _show(self, line: Line) -> None:
        standing = self._hosts.get(FIRST)
        if line.kind != DECIDED and standing is not None and standing.peer is not None:
            standing.peer.send(host_wire.Shown(kind=line.kind, t_ns=line.t_ns, fields=dict(line.fields)))

    def _send_orders(self) -> None:
        for host, standing in self._hosts.items():
            outbox = self._coordinator.outboxes.get(host)
            if standing.peer is None or outbox is None:
                continue
            for number, order in outbox.orders:
                if number > standing.num_sent:
                    standing.num_sent = number
                    action = to_json(_in_time_of(order, standing.offset_ns))
                    standing.peer.send(host_wire.Order(number=number, action=action))

    def _tick(self) -> None:
        """Time passes. Nobody is judged while a host is silent: its ranks may well talk."""
        now_s = time.monotonic()
        reachable = self._coordinator.state.hosts.reachable
        limit_s = self._launch.limits.heartbeat_s
        silent = [
            host
            for host, standing in self._hosts.items()
            if host in reachable and now_s - standing.heard_s > limit_s / 2
        ]
        for host in silent:
            silent_s = now_s - self._hosts[host].heard_s
            if host != FIRST and silent_s > LOST_HEARTBEATS * limit_s:
                self._lose(host, f"has not been heard for {silent_s:.1f} s", is_leaving=False)
        if not silent:
            self._take(events.Tick())

    def _lose(self, host: int, reason: str, *, is_leaving: bool) -> None:
        standing = self._hosts[host]
        if standing.peer is not None:
            standing.peer.close()
        fault_ns = time.monotonic_ns() - round((time.monotonic() - standing.heard_s) * 1e9)
        standing.has_left = True
        self._take(events.HostLost(host=host, reason=reason, is_leaving=is_leaving, fault_ns=fault_ns))

    # Agents.

    def _on_connect(self) -> None:
        accepted, _ = self._listener.accept()
        peer = Peer(
            accepted, self._selector, host_wire.FROM_AGENT, on_message=self._on_message, on_end=self._on_end
        )
        nonce = secrets.token_hex(16)
        self._nonces[peer] = (nonce, time.monotonic_ns())
        peer.send(host_wire.Challenge(nonce=nonce))

    def _on_end(self, peer: Peer, problem: str) -> None:
        self._nonces.pop(peer, None)
        host = self._agents.pop(peer, None)
        if host is not None and self._hosts[host].peer is peer:
            self._hosts[host].peer = None
        if problem:
            line = Line(kind="refused", t_ns=time.monotonic_ns(), fields={"reason": problem})
            os.write(self._file, encode_event(line.kind, line.t_ns, **line.fields))
            self._show(line)

    def _on_message(self, peer: Peer, message: wire.Message) -> None:
        if isinstance(message, host_wire.Join) and peer in self._nonces:
            self._on_join(peer, message)
            return
        host = self._agents.get(peer)
        if host is None:
            raise wire.WireError("the first message was no Join")
        standing = self._hosts[host]
        standing.heard_s = time.monotonic()
        match message:
            case host_wire.Ping():
                outbox = self._coordinator.outboxes[host]
                outbox.done(message.orders)
                peer.send(host_wire.Pong(number=message.number, reports=outbox.reports))
            case host_wire.Report():
                self._on_report(host, standing, message)
            case _:
                raise wire.WireError(f"{type(message).__name__} out of turn")

    def _on_join(self, peer: Peer, join: host_wire.Join) -> None:
        nonce, challenged_ns = self._nonces.pop(peer)
        if not host_wire.is_proven(join.proof, self._token, role="agent", nonce=nonce, name=join.name):
            raise wire.WireError(f"an agent at {join.address} does not know this run's token")
        refusal = _other_versions(join, own_versions())
        if refusal:
            peer.send(host_wire.Refuse(reason=refusal))
            peer.close(refusal)
            return
        host = self._host_for(join.name)
        if host is None:
            peer.close(f"an agent at {join.address} wants to join, and every host of the run is there")
            return
        known = self._hosts.get(host)
        if known is not None and known.peer is not None:
            known.peer.close()
        self._agents[peer] = host
        now_ns = time.monotonic_ns()
        self._hosts[host] = Standing(
            peer=peer,
            heard_s=time.monotonic(),
            offset_ns=self._offset_ns(join, (challenged_ns + now_ns) // 2),
            num_sent=join.orders,
        )
        outbox = self._coordinator.outboxes.get(host)
        is_known = outbox is not None and outbox.name == join.name
        peer.send(
            host_wire.Welcome(
                host=host,
                proof=host_wire.prove(self._token, role="coordinator", nonce=join.nonce, name=join.name),
                reports=outbox.reports if outbox is not None and is_known else 0,
                launch=self._launch.to_json(),
                lease_s=self._lease_s,
                patience_s=self._launch.patience_s,
            )
        )
        joined = events.HostJoined(host=host, name=join.name, address=join.address, running=join.running)
        lines = self._lines_of_join(host, join, now_ns) if self._launch.hosts > 1 else []
        self._take(joined, lines=lines)

    def _offset_ns(self, join: host_wire.Join, answered_ns: int) -> int:
        """What must be added to an agent's times: measured once, for its ranks' records are moved by it.

        Args:
            join: Which it sent at its time ``t_ns``.
            answered_ns: When that was, here: half-way between the challenge and its answer.
        """
        offset_ns = answered_ns - join.t_ns
        return self._offsets_ns.setdefault(join.name, 0 if abs(offset_ns) < _SAME_CLOCK_NS else offset_ns)

    def _lines_of_join(self, host: int, join: host_wire.Join, now_ns: int) -> list[Line]:
        ranks = [rank for rank, at in enumerate(self._launch.placement) if at == host]
        told = {
            "host": host,
            "name": join.name,
            "address": join.address,
            "devices": ranks,
            "offset_ns": self._hosts[host].offset_ns,
        }
        lines = [Line(kind=EventKind.HOST, t_ns=now_ns, fields=told)]
        ahead_s = join.wall_s - time.time()
        if abs(ahead_s) > _WORTH_SAYING_S:
            word = "ahead" if ahead_s > 0 else "behind"
            reason = f"host {host}: its wall clock is {abs(ahead_s):.0f} s {word}; nothing depends on that"
            lines.append(Line(kind="decision", t_ns=now_ns, fields={"reason": reason}))
        return lines

    @property
    def _lease_s(self) -> float:
        """A host that is alone cannot be cut off from anybody."""
        return LEASE_HEARTBEATS * self._launch.limits.heartbeat_s if self._launch.hosts > 1 else 0.0

    def _host_for(self, name: str) -> int | None:
        """The number of an agent's host: the one that it had, else one that is free; None if there is none."""
        if name == self._first:
            return FIRST
        outboxes, reachable = self._coordinator.outboxes, self._coordinator.state.hosts.reachable
        for host, outbox in outboxes.items():
            if outbox.name == name:
                return host
        free = [host for host in range(1, self._launch.hosts) if host not in reachable]
        return free[0] if free else None

    def _on_report(self, host: int, standing: Standing, report: host_wire.Report) -> None:
        try:
            event = from_json(report.event, EVENT_KINDS)
        except CodecError as error:
            raise wire.WireError(str(error)) from error
        lines = [
            Line(kind=kind, t_ns=t_ns + standing.offset_ns, fields=fields)
            for kind, t_ns, fields in report.records
        ]
        if isinstance(event, events.HostLost):
            # Said when it begins to leave, if the run is not over, and again when nothing of it is left.
            is_last = (
                self._coordinator.conclusion is not None
                or host not in self._coordinator.state.hosts.reachable
            )
            standing.has_left |= is_last
            event = replace(event, host=host)
        event = _in_own_time(event, standing.offset_ns)
        event = judge_hello(event, self._coordinator, self._launch.folder)
        self._take(event, host=host, number=report.number, lines=lines)
        if standing.has_left and standing.peer is not None:
            reports = self._coordinator.outboxes[host].reports
            standing.peer.send(host_wire.Pong(number=0, reports=reports))  # it waits for nothing else


def own_versions() -> dict[str, str]:
    """What must be the same on every host of a run."""
    return {"trimtab": __version__, "python": f"{sys.version_info.major}.{sys.version_info.minor}"}


def _other_versions(join: host_wire.Join, own: Mapping[str, str]) -> str:
    """Why an agent of other versions is refused, as a table; empty if it is not."""
    names = sorted(own.keys() | join.versions.keys())
    wrong = [name for name in names if own.get(name) != join.versions.get(name)]
    rows = [f"  {name}: {join.versions.get(name)} at {join.address}, {own.get(name)} here" for name in wrong]
    return "\n".join(["the versions of this host are not those of the run:", *rows]) if rows else ""


def _in_own_time(event: events.Event, offset_ns: int) -> events.Event:
    """An event of another host with its times on this one's clock."""
    match event:
        case events.Exited() | events.HostLost():
            return replace(event, fault_ns=event.fault_ns + offset_ns)
        case events.Received(
            message=wire.Parked() | wire.Trouble() | wire.Committed() | wire.Note() as message
        ):
            return replace(event, message=replace(message, t_ns=message.t_ns + offset_ns))
        case _:
            return event


def _in_time_of(order: AgentOrder, offset_ns: int) -> AgentOrder:
    """An order with its times on another host's clock."""
    if isinstance(order, events.Tell) and isinstance(order.message, wire.Fence):
        return replace(order, message=replace(order.message, fault_ns=order.message.fault_ns - offset_ns))
    return order


def main() -> None:
    """Take the ticket, serve, end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the agent to judge
    ticket = json.loads(sys.stdin.readline())
    server = CoordinatorServer(
        launch_from_json(ticket["launch"]),
        token=ticket["token"],
        first=ticket["first"],
        listener=socket.socket(fileno=ticket["listener"]),
        lifeline=sys.stdin.fileno(),
    )
    server.run()


if __name__ == "__main__":
    main()
