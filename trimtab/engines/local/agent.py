"""The agent: starts the ranks of one machine, watches them, carries out what ``policy.membership`` decides.

One thread, one loop over sockets, process ends and signals. It holds no tensors and imports no torch, so it is up
in a fraction of a second and outlives every rank.
"""

import json
import os
import secrets
import selectors
import signal
import socket
import time
from dataclasses import asdict, dataclass, field

from trimtab.engines.agent_journal import AgentJournal
from trimtab.engines.engine import Observer, Outcome
from trimtab.engines.launch import Launch, Ticket
from trimtab.engines.local.rank_process import RankProcess, describe_exit, start_rank
from trimtab.engines.stop_signals import StopSignals, is_warned_again
from trimtab.ledger import read_clocks
from trimtab.policy import events, wire
from trimtab.policy import membership as policy
from trimtab.terms import RunState

_TICK_S = 0.1
_DUMP_S = 0.05
"""How long a rank that is about to be killed may take to write its stacks."""
_DISMISSAL_S = 5.0
"""How long ranks that were dismissed may take to exit before they are killed."""


@dataclass(slots=True, kw_only=True)
class _Connection:
    socket: socket.socket
    decoder: wire.Decoder = field(default_factory=wire.Decoder)
    who: tuple[int, int] | None = None


class Agent:
    """Runs one attempt to its end. Call ``run`` once, on the main thread (it handles SIGINT and SIGTERM there)."""

    def __init__(self, launch: Launch, observe: Observer = lambda kind, t_ns, fields: None) -> None:
        self._launch, self._observe = launch, observe
        self._selector = selectors.DefaultSelector()
        self._token = secrets.token_hex(32)
        self._ranks: dict[int, RankProcess] = {}
        self._connections: dict[int, _Connection] = {}
        self._last_sign_ns: dict[int, int] = {}
        self._results: dict[int, wire.Finished] = {}
        self._num_committed = 0
        self._fingerprint: dict[str, str] | None = None
        self._end: events.End | None = None
        self._signal: int | None = None
        self._stop_deadline_s: float | None = None
        self._fault: events.Fault | None = None
        self._state = policy.State(
            num_shares=launch.num_shares,
            on_loss=launch.on_loss,
            limits=launch.limits,
            is_replacing=launch.is_replacing,
            num_needed=launch.num_needed,
        )
        self._journal = AgentJournal(launch, observe)
        self._record = self._journal.record

    def run(self) -> Outcome:
        """Start the ranks and stay until the last process is gone. Leaves no process, socket or file behind."""
        self._journal.begin()
        self._signals = StopSignals(self._selector, self._on_signal)
        self._listen()
        try:
            for rank in range(self._launch.devices):
                self._carry_out(events.Spawn(rank=rank, incarnation=self._launch.first_incarnation))
            while self._end is None:
                self._turn(_TICK_S)
            self._dismiss()
        finally:
            self._kill_everything()
            self._journal.end(self._outcome())
            self._close()
        return self._outcome()

    # The loop.

    def _turn(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            key.data()
        if self._stop_deadline_s is not None and time.monotonic() > self._stop_deadline_s:
            self._end = events.End(
                is_failed=True, error=f"did not end within the grace of {self._launch.grace_s:g} s"
            )
        self._see_stopped()
        self._decide(events.Tick())

    def _see_stopped(self) -> None:
        """Of ranks that should have been heard of by now, say which are stopped; the system knows."""
        late_ns = time.monotonic_ns() - round(self._launch.limits.heartbeat_s * 1e9 / 2)
        for rank in self._ranks.values():
            if not rank.is_reaped and self._last_sign_ns[rank.rank] < late_ns and rank.is_stopped():
                self._decide(events.Stopped(rank=rank.rank, incarnation=rank.incarnation))

    def _decide(self, event: events.Event) -> None:
        decision = policy.decide(self._state, event, now_s=time.monotonic(), now_ns=time.monotonic_ns())
        self._state = decision.state
        if decision.reason:
            self._record("decision", reason=decision.reason)
        for action in decision.actions:
            self._carry_out(action)

    def _carry_out(self, action: events.Action) -> None:
        match action:
            case events.Tell():
                self._tell(action)
            case events.Kill():
                self._kill(action)
            case events.Spawn():
                self._spawn(action)
            case events.Declare():
                self._declare(action.fault)
            case events.End():
                self._end = action

    def _tell(self, tell: events.Tell) -> None:
        match tell.message:
            case wire.Fence() as fence:
                self._record_once("fence", epoch=fence.epoch, rank=tell.rank, reason=fence.reason)
            case wire.Form() as form if tell.rank == form.members[0]:
                self._record("formed", **asdict(form))
                if form.step < self._num_committed:
                    self._record("rollback", to_step=form.step, reason="nobody who lives has a newer state")
                self._num_committed = form.step
            case _:
                pass
        for connection in list(self._connections.values()):
            if connection.who is not None and connection.who[0] == tell.rank:
                self._send(connection, tell.message)

    def _kill(self, kill: events.Kill) -> None:
        rank = self._ranks.get(kill.rank)
        if rank is not None and rank.incarnation == kill.incarnation:
            self._dump_stacks()
            rank.kill_group()

    def _dump_stacks(self) -> None:
        """Have every rank that listens write its stacks into its log: a hang is explained by what all were doing."""
        logs = {}
        for connection in self._connections.values():
            rank = self._ranks[connection.who[0]] if connection.who is not None else None
            if rank is not None and not rank.is_reaped:
                os.kill(rank.pid, signal.SIGUSR2)
                logs[rank.rank] = str(rank.log)
        time.sleep(_DUMP_S)
        self._record("stacks", logs=logs)

    def _spawn(self, spawn: events.Spawn) -> None:
        started_ns = time.monotonic_ns()
        rank = start_rank(self._launch, self._ticket(spawn))
        self._ranks[spawn.rank] = rank
        self._last_sign_ns[spawn.rank] = time.monotonic_ns()
        self._record(
            "spawned",
            at_ns=started_ns,
            device=spawn.rank,
            rank=spawn.rank,
            incarnation=spawn.incarnation,
            pid=rank.pid,
        )
        self._selector.register(rank.pidfd, selectors.EVENT_READ, lambda: self._on_exit(rank))
        self._decide(events.Spawned(rank=spawn.rank, incarnation=spawn.incarnation))

    def _ticket(self, spawn: events.Spawn) -> Ticket:
        launch = self._launch
        host, port = self._listener.getsockname()
        return Ticket(
            run=launch.run,
            folder=str(launch.folder),
            rank=spawn.rank,
            incarnation=spawn.incarnation,
            attempt=launch.attempt,
            devices=launch.devices,
            agent_host=host,
            agent_port=port,
            token=self._token,
            settings=launch.rank_settings,
        )

    def _declare(self, fault: events.Fault) -> None:
        self._fault = fault
        self._record(
            "fault",
            rank=fault.rank,
            incarnation=fault.incarnation,
            step=fault.step,
            cause=fault.cause.value,
            detail=fault.detail,
            t_fault_ns=fault.fault_ns,
            t_declared_ns=fault.declared_ns,
        )

    # What comes in.

    def _listen(self) -> None:
        self._listener = socket.create_server(self._launch.agent_address, backlog=self._launch.devices + 8)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_connect)

    def _on_connect(self) -> None:
        accepted, _ = self._listener.accept()
        accepted.settimeout(5.0)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(socket=accepted)
        self._connections[accepted.fileno()] = connection
        self._selector.register(accepted, selectors.EVENT_READ, lambda: self._on_data(connection))

    def _on_data(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        try:
            for message in connection.decoder.feed(data):
                self._on_message(connection, message)
        except wire.WireError as error:
            self._record("refused", reason=str(error))
            self._drop(connection)

    def _on_message(self, connection: _Connection, message: wire.Message) -> None:
        if isinstance(message, wire.Hello):
            self._on_hello(connection, message)
            return
        if connection.who is None:
            raise wire.WireError("the first message was no Hello")
        rank, incarnation = connection.who
        match message:
            case wire.Beat():
                self._last_sign_ns[rank] = max(self._last_sign_ns[rank], message.t_ns)
            case wire.Committed():
                self._on_commit(rank, message)
            case wire.Note():
                if message.kind == "planted":
                    self._last_sign_ns[rank] = message.t_ns
                self._record(message.kind, at_ns=message.t_ns, **{"rank": rank, **message.fields})
            case wire.Finished():
                self._results[rank] = message
            case wire.Failed():
                self._record(
                    "failed", rank=rank, step=message.step, phase=message.phase.value, error=message.error
                )
            case _:
                pass
        self._decide(events.Received(rank=rank, incarnation=incarnation, message=message))

    def _on_hello(self, connection: _Connection, hello: wire.Hello) -> None:
        if not wire.is_proven(hello, self._token):
            raise wire.WireError(f"rank {hello.rank} does not know this run's token")
        known = self._ranks.get(hello.rank)
        if known is None or known.incarnation != hello.incarnation:
            self._send(connection, wire.Dismiss(reason="this process is no longer a member of the run"))
            return
        mismatch = self._mismatch(hello.fingerprint)
        if mismatch:
            self._end = events.End(
                is_failed=True, error=f"rank {hello.rank} may not join an exact run: {mismatch}"
            )
            return
        connection.who = (hello.rank, hello.incarnation)
        self._record("hello", rank=hello.rank, incarnation=hello.incarnation, fingerprint=hello.fingerprint)
        self._decide(events.Received(rank=hello.rank, incarnation=hello.incarnation, message=hello))

    def _mismatch(self, found: dict[str, str]) -> str | None:
        """What of a rank's fingerprint differs from the run's, which the first rank of the first attempt sets."""
        path = self._launch.folder / "fingerprint.json"
        if self._fingerprint is None:
            if not path.exists():
                path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
            self._fingerprint = json.loads(path.read_text(encoding="utf-8"))
        assert self._fingerprint is not None
        keys = sorted(found.keys() | self._fingerprint.keys())
        wrong = [
            f"{key} is {found.get(key)!r}, the run began with {self._fingerprint.get(key)!r}"
            for key in keys
            if found.get(key) != self._fingerprint.get(key)
        ]
        return "; ".join(wrong) or None

    def _on_commit(self, rank: int, commit: wire.Committed) -> None:
        self._num_committed = max(self._num_committed, commit.step + 1)
        if commit.metrics:
            self._observe("step", commit.t_ns, {"step": commit.step, "rank": rank, **commit.metrics})
        fault = self._fault
        if fault is not None and commit.epoch == self._state.epoch and self._state.is_formed:
            self._fault = None
            self._record(
                "recovered",
                step=commit.step,
                rank=fault.rank,
                cause=fault.cause.value,
                detail=fault.detail,
                detect_s=(fault.declared_ns - fault.fault_ns) / 1e9,
                resumed_s=(commit.t_ns - fault.fault_ns) / 1e9,
                steps_lost=max(0, fault.step - commit.step),
            )

    def _on_exit(self, rank: RankProcess) -> None:
        self._selector.unregister(rank.pidfd)
        self._drain(rank)
        code = rank.reap()
        how = describe_exit(code)
        self._record_exit(rank, code)
        self._decide(
            events.Exited(
                rank=rank.rank,
                incarnation=rank.incarnation,
                how=how if code <= 0 else f"{how}, see {rank.log}",
                is_clean=code == 0,
                fault_ns=min(time.monotonic_ns(), self._sign_of_life_ns(rank)),
            )
        )

    def _record_exit(self, rank: RankProcess, code: int) -> None:
        self._record(
            "exited",
            rank=rank.rank,
            incarnation=rank.incarnation,
            device=rank.rank,
            code=max(code, 0),
            signal=max(-code, 0),
            log=str(rank.log),
        )

    def _drain(self, rank: RankProcess) -> None:
        """Read what a dead rank still said: its first cause arrives before its exit is judged."""
        for connection in list(self._connections.values()):
            if connection.who == (rank.rank, rank.incarnation):
                connection.socket.setblocking(False)
                while connection.socket.fileno() in self._connections:
                    self._on_data(connection)

    def _sign_of_life_ns(self, rank: RankProcess) -> int:
        """The last moment at which a rank is known to have lived: a message, or a switch of its clocks."""
        path = self._launch.folder / "clocks" / f"rank-{rank.rank}-{rank.incarnation}.clock"
        reading = read_clocks(path.read_bytes()) if path.exists() else None
        return max(self._last_sign_ns[rank.rank], reading.last_ns if reading else 0)

    # Signals and ends.

    def _on_signal(self, number: int) -> None:
        if self._signal is not None:
            if not is_warned_again(self._signal, number):
                self._end = events.End(is_failed=True, error="stopped by force: a second signal arrived")
            return
        self._signal = number
        self._stop_deadline_s = time.monotonic() + self._launch.grace_s
        self._record("signal", signal=number)
        self._decide(events.StopAsked())

    def _dismiss(self) -> None:
        """Give the ranks time to exit by themselves after the run's end."""
        deadline_s = time.monotonic() + _DISMISSAL_S
        if self._end is not None and self._end.is_failed:
            return
        while any(not rank.is_reaped for rank in self._ranks.values()) and time.monotonic() < deadline_s:
            self._turn(_TICK_S)

    def _kill_everything(self) -> None:
        for rank in self._ranks.values():
            if not rank.is_reaped:
                rank.kill_group(signal.SIGKILL)
        for rank in self._ranks.values():
            if not rank.is_reaped:
                self._selector.unregister(rank.pidfd)
                code = rank.reap()
                self._record_exit(rank, code)

    def _close(self) -> None:
        self._signals.close()
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._listener.close()
        self._selector.close()
        self._journal.close()

    def _outcome(self) -> Outcome:
        end = self._end or events.End(is_failed=True, error="the agent itself failed")
        finished = next(iter(self._results.values()), None)
        error = end.error or self._disagreement()
        if end.is_failed or error is not None:
            state = RunState.FAILED
        else:
            is_stopped = end.is_stopped or (finished is not None and finished.is_stopped)
            state = RunState.STOPPED if is_stopped else RunState.DONE
        results = dict(finished.results) if finished is not None else {}
        return Outcome(
            state=state,
            error=error,
            results=results,
            signal_number=self._signal,
            is_input_error=end.is_input_error,
        )

    def _disagreement(self) -> str | None:
        """Replicas whose weights differ at the end: the guarantee is broken, and that must be loud."""
        hashes = {finished.results.get("weights_sha256") for finished in self._results.values()}
        return (
            f"replicas ended with different weights: {sorted(map(str, hashes))}" if len(hashes) > 1 else None
        )

    # Small things.

    def _send(self, connection: _Connection, message: wire.Message) -> None:
        try:
            connection.socket.sendall(wire.encode(message))
        except OSError:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.socket.fileno(), None) is not None:
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def _record_once(self, kind: str, *, epoch: int, rank: int, reason: str) -> None:
        members = self._state.roster
        alive = [r for r in members if r in self._ranks and not self._ranks[r].is_reaped]
        if alive and rank == alive[0]:
            self._record(kind, epoch=epoch, reason=reason)
