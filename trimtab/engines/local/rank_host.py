"""The ranks of one host: their processes, what they say, and what they are told. It decides nothing."""

import os
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from trimtab.engines.launch import Launch, Ticket
from trimtab.engines.local.fork_server import ForkServer, can_fork
from trimtab.engines.local.peers import Peer
from trimtab.engines.local.rank_process import RankProcess, describe_exit, start_rank
from trimtab.ledger import EventKind, read_clocks
from trimtab.policy import events, wire
from trimtab.policy.coordinator import AgentOrder, Conclude, Line

_DUMP_S = 0.05
"""How long a rank that is about to be killed may take to write its stacks."""


class Report(Protocol):
    """Takes what happens on this host, with the lines for the journal that go with it."""

    def __call__(self, event: events.Event, lines: Sequence[Line] = ()) -> None:
        """Called on the loop's thread, in the order in which things happen."""


class RankHost:
    """Parent of the ranks of one host, inside a loop over a selector.

    Args:
        launch: What is started.
        report: Hears of every start, exit and message.
        refused: Hears why a connection was refused.
        address: At which peers on other hosts reach these ranks.
        variables: Added to their environment.
        make_ticket: Changes what a rank is told, if somebody wants to.
    """

    def __init__(
        self,
        launch: Launch,
        selector: selectors.BaseSelector,
        *,
        report: Report,
        refused: Callable[[str], None],
        address: str = "127.0.0.1",
        variables: Iterable[tuple[str, str]] = (),
        make_ticket: Callable[[Ticket], Ticket] = lambda ticket: ticket,
    ) -> None:
        self._launch, self._selector, self._report, self._refused = launch, selector, report, refused
        self._address, self._variables, self._make_ticket = address, dict(variables), make_ticket
        self._token = secrets.token_hex(32)
        self._ranks: dict[int, RankProcess] = {}
        self._members: dict[Peer, tuple[int, int]] = {}
        self._strangers: set[Peer] = set()
        self._last_sign_ns: dict[int, int] = {}
        self._stopped: set[tuple[int, int]] = set()
        self._untold: list[Line] = []
        self.epoch = -1
        self._listener = socket.create_server(launch.agent_address, backlog=launch.devices + 8)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._on_connect)
        self._waiting: dict[tuple[int, int], int] = {}
        self._server: ForkServer | None = None
        if can_fork(launch):
            self._server = ForkServer(launch, self._variables, selector, on_settled=self._start_waiting)

    @property
    def running(self) -> tuple[tuple[int, int], ...]:
        """[rank, incarnation] of every process that has not been reaped, or waits for its start."""
        started = [(rank.rank, rank.incarnation) for rank in self._ranks.values() if not rank.is_reaped]
        return (*started, *self._waiting)

    # What it is told to do.

    def carry_out(self, order: AgentOrder) -> Conclude | None:
        """Do what the coordinator has ordered; the end of the run is handed back, for the agent to see to."""
        match order:
            case events.Tell():
                self.tell(order.rank, order.message)
            case events.Kill():
                self.kill(order.rank, order.incarnation)
            case events.Spawn():
                self.start(order.rank, order.incarnation)
            case Conclude():
                return order
        return None

    def start(self, rank: int, incarnation: int) -> None:
        """Start a process of a rank, unless it had this one or a later one; an older one ends first.

        Raises: LaunchError.
        """
        known = self._ranks.get(rank)
        if (known is not None and known.incarnation >= incarnation) or (rank, incarnation) in self._waiting:
            return
        if known is not None and not known.is_reaped:
            known.kill_group()
            self._on_exit(known)
        self._waiting[rank, incarnation] = time.monotonic_ns()
        if self._server is None or not self._server.is_loading:
            self._start_waiting()
        else:
            self._report(
                events.Spawned(rank=rank, incarnation=incarnation)
            )  # others shall not go on without it

    def _start_waiting(self) -> None:
        """Start those who wait for what ranks are forked from; its loading counts as theirs."""
        while self._waiting:
            rank, incarnation = min(self._waiting)
            self._start(rank, incarnation, self._waiting.pop((rank, incarnation)))

    def _start(self, rank: int, incarnation: int, started_ns: int) -> None:
        server = self._server if self._server is not None and self._server.is_ready else None
        process = start_rank(self._launch, self._ticket(rank, incarnation), self._variables, server)
        self._ranks[rank] = process
        self._last_sign_ns[rank] = time.monotonic_ns()
        self._selector.register(process.pidfd, selectors.EVENT_READ, lambda: self._on_exit(process))
        fields = {"device": rank, "rank": rank, "incarnation": incarnation, "pid": process.pid}
        line = Line(kind=EventKind.SPAWNED, t_ns=started_ns, fields=fields)
        self._report(events.Spawned(rank=rank, incarnation=incarnation), [line])

    def tell(self, rank: int, message: wire.Message) -> None:
        """Hand a message to a rank, if it is there."""
        if isinstance(message, wire.Form):
            self.epoch = message.epoch
        for peer, who in list(self._members.items()):
            if who[0] == rank:
                peer.send(message)

    def kill(self, rank: int, incarnation: int) -> None:
        """End a rank's process and its children by force; all who listen write their stacks into their logs."""
        process = self._ranks.get(rank)
        if self._waiting.pop((rank, incarnation), None) is not None:
            how, now_ns = "was not started yet", time.monotonic_ns()
            self._report(
                events.Exited(rank=rank, incarnation=incarnation, how=how, is_clean=False, fault_ns=now_ns)
            )
        elif process is not None and process.incarnation == incarnation and not process.is_reaped:
            self._dump_stacks()
            process.kill_group()

    def turn(self) -> None:
        """Look at what nobody reports: ranks that are stopped, and a server that does not get ready."""
        self._see_stopped()
        if self._server is not None:
            self._server.turn()

    def _see_stopped(self) -> None:
        """Of ranks that should have been heard of by now, say which are stopped; the system knows."""
        late_ns = time.monotonic_ns() - round(self._launch.limits.heartbeat_s * 1e9 / 2)
        for rank in self._ranks.values():
            who = (rank.rank, rank.incarnation)
            is_late = not rank.is_reaped and self._last_sign_ns[rank.rank] < late_ns
            if is_late and who not in self._stopped and rank.is_stopped():
                self._stopped.add(who)
                self._report(events.Stopped(rank=rank.rank, incarnation=rank.incarnation), [])
            elif not is_late:
                self._stopped.discard(who)

    def fence(self, reason: str) -> bool:
        """Have all ranks leave the epoch that they are in; whether there was one."""
        if self.epoch < 0:
            return False
        message = wire.Fence(epoch=self.epoch, fault_ns=time.monotonic_ns(), reason=reason)
        for peer in list(self._members):
            peer.send(message)
        return bool(self._members)

    def signal_all(self, number: int) -> None:
        """Send a signal to every rank and its children."""
        for rank in self._ranks.values():
            if not rank.is_reaped:
                rank.kill_group(number)

    def kill_everything(self) -> None:
        """End whatever still runs, and reap it; what waits is not started any more."""
        self._waiting.clear()
        self.signal_all(signal.SIGKILL)
        for rank in list(self._ranks.values()):
            if not rank.is_reaped:
                self._on_exit(rank)

    def close(self) -> None:
        """No process may run any more."""
        for peer in [*self._members, *self._strangers]:
            peer.close()
        self._selector.unregister(self._listener)
        self._listener.close()
        if self._server is not None:
            self._server.close()

    # What comes in.

    def _on_connect(self) -> None:
        accepted, _ = self._listener.accept()
        self._strangers.add(
            Peer(accepted, self._selector, wire.KINDS, on_message=self._on_message, on_end=self._on_end)
        )

    def _on_end(self, peer: Peer, problem: str) -> None:
        self._strangers.discard(peer)
        self._members.pop(peer, None)
        if problem:
            self._refused(problem)

    def _on_message(self, peer: Peer, message: wire.Message) -> None:
        if isinstance(message, wire.Hello):
            self._on_hello(peer, message)
            return
        if peer not in self._members:
            raise wire.WireError("the first message was no Hello")
        rank, incarnation = self._members[peer]
        match message:
            case wire.Beat():
                self._last_sign_ns[rank] = max(self._last_sign_ns[rank], message.t_ns)
            case wire.Note(kind="planted"):
                self._last_sign_ns[rank] = message.t_ns
            case _:
                pass
        self._report(events.Received(rank=rank, incarnation=incarnation, message=message))

    def _on_hello(self, peer: Peer, hello: wire.Hello) -> None:
        if not wire.is_proven(hello, self._token):
            raise wire.WireError(f"rank {hello.rank} does not know this run's token")
        known = self._ranks.get(hello.rank)
        if known is None or known.incarnation != hello.incarnation:
            peer.send(wire.Dismiss(reason="this process is no longer a member of the run"))
            return
        self._strangers.discard(peer)
        self._members[peer] = (hello.rank, hello.incarnation)
        self._report(events.Received(rank=hello.rank, incarnation=hello.incarnation, message=hello))

    def _on_exit(self, rank: RankProcess) -> None:
        self._selector.unregister(rank.pidfd)
        for peer, who in list(self._members.items()):
            if who == (rank.rank, rank.incarnation):
                peer.drain()  # its first cause arrives before its exit is judged
        code = rank.reap()
        how = describe_exit(code)
        fields: dict[str, Any] = {
            "rank": rank.rank,
            "incarnation": rank.incarnation,
            "device": rank.rank,
            "code": max(code, 0),
            "signal": max(-code, 0),
            "log": str(rank.log),
        }
        exited = events.Exited(
            rank=rank.rank,
            incarnation=rank.incarnation,
            how=how if code <= 0 else f"{how}, see {rank.log}",
            is_clean=code == 0,
            fault_ns=min(time.monotonic_ns(), self._sign_of_life_ns(rank)),
        )
        lines = [*self._untold, Line(kind=EventKind.EXITED, t_ns=time.monotonic_ns(), fields=fields)]
        self._untold.clear()
        self._report(exited, lines)

    def _sign_of_life_ns(self, rank: RankProcess) -> int:
        """The last moment at which a rank is known to have lived: a message, or a switch of its clocks."""
        path = self._launch.folder / "clocks" / f"rank-{rank.rank}-{rank.incarnation}.clock"
        reading = read_clocks(path.read_bytes()) if path.exists() else None
        return max(self._last_sign_ns[rank.rank], reading.last_ns if reading else 0)

    def _dump_stacks(self) -> None:
        """Have every rank that listens write its stacks into its log: a hang is explained by what all were doing."""
        logs = {}
        for rank, _ in self._members.values():
            if not self._ranks[rank].is_reaped:
                os.kill(self._ranks[rank].pid, signal.SIGUSR2)
                logs[rank] = str(self._ranks[rank].log)
        time.sleep(_DUMP_S)
        self._untold.append(Line(kind=EventKind.STACKS, t_ns=time.monotonic_ns(), fields={"logs": logs}))

    def _ticket(self, rank: int, incarnation: int) -> Ticket:
        launch = self._launch
        host, port = self._listener.getsockname()
        return self._make_ticket(
            Ticket(
                run=launch.run,
                folder=str(launch.folder),
                rank=rank,
                incarnation=incarnation,
                attempt=launch.attempt,
                devices=launch.devices,
                agent_pid=os.getpid(),
                agent_host=host,
                agent_port=port,
                token=self._token,
                address=self._address,
                settings=launch.rank_settings,
            )
        )
