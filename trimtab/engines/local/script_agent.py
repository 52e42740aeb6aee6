"""The agent of a script: it watches processes that may never say a word, and ranks as soon as they do.

It decides in its own process: a script runs on one host.
"""

import json
import math
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import replace

from trimtab.engines.agent_journal import AgentJournal
from trimtab.engines.engine import Observer, Outcome
from trimtab.engines.launch import Launch, Ticket
from trimtab.engines.local.agent import failed, outcome_of
from trimtab.engines.local.coordinator import initial_state
from trimtab.engines.local.fingerprints import judge_hello, read_fingerprint
from trimtab.engines.local.rank_host import RankHost
from trimtab.engines.stop_signals import StopSignals
from trimtab.policy import events, wire
from trimtab.policy.coordinator import DECIDED, Conclude, Coordinator, Line, Moment
from trimtab.policy.quorum import FIRST
from trimtab.policy.scripts import LastWords, ScriptState, decide_script, last_words_name
from trimtab.terms import RunState

_TURN_S = 0.1
_PATIENCE_S = 5.0
"""How long a script goes on after its run until somebody who watches is told."""


class ScriptAgent:
    """Runs one attempt of a script. Call ``run`` once, on the main thread.

    Until a rank says hello, all that happens is what `policy.scripts` decides: start, exit, start again. The first
    hello means that the script adopts the run: from then on the ranks are members like any others, and those that
    never report are late. When the run is complete, the ranks may take as long as they like to end: what a script
    does after its loop is its own.
    """

    def __init__(self, launch: Launch, observe: Observer = lambda kind, t_ns, fields: None) -> None:
        self._launch, self._observe = launch, observe
        self._selector = selectors.DefaultSelector()
        self._journal = AgentJournal(launch, observe)
        state = initial_state(launch)
        state = replace(state, hosts=replace(state.hosts, reachable=frozenset({FIRST})))
        self._coordinator = Coordinator(state, fingerprint=read_fingerprint(launch.folder))
        self._ranks = RankHost(
            launch,
            self._selector,
            report=self._report,
            refused=lambda reason: self._journal.record("refused", reason=reason),
            make_ticket=self._make_ticket,
        )
        self._script = ScriptState(devices=launch.devices, max_restarts=launch.max_script_restarts)
        self._is_adopted = False
        self._ports: dict[int, int] = {}
        self._end: Conclude | None = None
        self._signal: int | None = None
        self._stop_deadline_s: float | None = None

    def run(self) -> Outcome:
        """Start the ranks and stay until the last process is gone. Leaves no process or socket behind."""
        began_ns = self._journal.begin()
        self._signals = StopSignals(self._selector, self._on_signal)
        try:
            for rank in range(self._launch.devices):
                self._ranks.start(rank, self._launch.first_incarnation)
            self._journal.hold(began_ns)
            while self._end is None:
                self._turn()
            self._wait_for_scripts()
        finally:
            self._ranks.kill_everything()
            self._journal.end(self._outcome())
            self._signals.close()
            self._ranks.close()
            self._selector.close()
            self._journal.close()
        return self._outcome()

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TURN_S):
            key.data()
        if self._stop_deadline_s is not None and time.monotonic() > self._stop_deadline_s:
            self._end = failed(f"did not end within the grace of {self._launch.grace_s:g} s")
        self._report(events.Tick())

    # What happens, and what is decided.

    def _report(self, event: events.Event, lines: Sequence[Line] = ()) -> None:
        if (
            not self._is_adopted
            and isinstance(event, events.Received)
            and isinstance(event.message, wire.Hello)
        ):
            self._is_adopted = True
            for rank, incarnation in self._script.running.items():
                self._take(events.Spawned(rank=rank, incarnation=incarnation))
        if self._is_adopted:
            self._take(judge_hello(event, self._coordinator, self._launch.folder), lines)
            self._judge_end(event)
            return
        self._journal.keep(lines)
        decision = decide_script(self._script, event, self._last_words(event))
        self._script = decision.state
        if decision.reason:
            self._journal.record("decision", reason=decision.reason)
        for action in decision.actions:
            match action:
                case events.Kill():
                    self._ranks.kill(action.rank, action.incarnation)
                case events.Spawn():
                    self._ranks.start(action.rank, action.incarnation)
                case events.End():
                    end = failed(action.error or "")
                    self._end = replace(
                        end,
                        is_failed=action.is_failed,
                        error=action.error,
                        is_input_error=action.is_input_error,
                    )
                case _:
                    pass

    def _take(self, event: events.Event, lines: Sequence[Line] = ()) -> None:
        moment = Moment(now_s=time.monotonic(), now_ns=time.monotonic_ns())
        taken = self._coordinator.take(event, moment, lines)
        self._journal.keep(line for line in taken.lines if line.kind != DECIDED)
        for line in taken.shown:
            self._observe(line.kind, line.t_ns, dict(line.fields))
        outbox = self._coordinator.outboxes.get(FIRST)
        while outbox is not None and outbox.orders:
            number, order = outbox.orders[0]
            outbox.done(number)
            self._end = self._ranks.carry_out(order) or self._end

    def _last_words(self, event: events.Event) -> LastWords | None:
        if not isinstance(event, events.Exited):
            return None
        try:
            path = self._launch.folder / last_words_name(event.rank, event.incarnation)
            said = json.loads(path.read_text(encoding="utf-8"))
            return LastWords(error=str(said["error"]), is_input_error=bool(said["is_input_error"]))
        except (OSError, ValueError, KeyError, TypeError):  # it left none, or was killed while it wrote them
            return None

    def _judge_end(self, event: events.Event) -> None:
        """A script that fails after its last step: what it was to do with the weights did not happen."""
        is_complete = self._coordinator.state.is_over and self._end is not None and not self._end.is_failed
        if is_complete and isinstance(event, events.Exited) and not event.is_clean:
            error = f"the run was complete, then rank {event.rank} of the script failed: {event.how}"
            self._end = failed(error)

    def _make_ticket(self, ticket: Ticket) -> Ticket:
        """The ranks of one incarnation find each other at one port, if they look for each other at all."""
        if ticket.incarnation not in self._ports:
            self._ports[ticket.incarnation] = _free_port(ticket.agent_host)
        port = self._ports[ticket.incarnation]
        return replace(ticket, settings={**ticket.settings, "rendezvous_port": port})

    # Signals and ends.

    def _on_signal(self, number: int) -> None:
        if self._signal is not None:
            self._end = failed("stopped by force: a second signal arrived")
            return
        self._signal = number
        self._stop_deadline_s = time.monotonic() + self._launch.grace_s
        self._journal.record("signal", signal=number)
        self._report(events.StopAsked())
        if not self._is_adopted or self._coordinator.state.is_over:
            self._ranks.signal_all(signal.SIGTERM)

    def _wait_for_scripts(self) -> None:
        """Wait until the scripts have ended by themselves, or somebody has had enough."""
        complete = self._end
        if complete is None or complete.is_failed:
            return
        told_s = time.monotonic() + _PATIENCE_S
        while (left := self._ranks.running) and self._end is complete:
            self._turn()
            if time.monotonic() > told_s:
                told_s = math.inf
                ranks = ", ".join(str(rank) for rank, _ in left)
                self._journal.record(
                    "decision", reason=f"the run is complete; the script goes on in rank {ranks}"
                )

    def _outcome(self) -> Outcome:
        outcome = outcome_of(self._end or failed("the agent itself failed"), self._signal)
        if not self._is_adopted and self._signal is not None and outcome.state is RunState.DONE:
            return replace(outcome, state=RunState.STOPPED)
        return outcome


def _free_port(host: str) -> int:
    """A port that nobody listens at now."""
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        return port
