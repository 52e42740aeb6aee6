"""The agent of a script: it watches processes that may never say a word, and ranks as soon as they do."""

import json
import math
import signal
import socket
import time
from dataclasses import replace

from trimtab.engines.engine import Observer, Outcome
from trimtab.engines.launch import Launch, Ticket
from trimtab.engines.local.agent import Agent
from trimtab.policy import events, wire
from trimtab.policy.scripts import LastWords, ScriptState, decide_script, last_words_name
from trimtab.terms import RunState

_TURN_S = 0.1
_PATIENCE_S = 5.0
"""How long a script goes on after its run until somebody who watches is told."""


class ScriptAgent(Agent):
    """Runs one attempt of a script. See Agent.

    Until a rank says hello, all that happens is what `policy.scripts` decides: start, exit, start again. The first
    hello means that the script adopts the run: from then on the ranks are members like any others, and those that
    never report are late. When the run is complete, the ranks may take as long as they like to end: what a script
    does after its loop is its own.
    """

    def __init__(self, launch: Launch, observe: Observer) -> None:
        super().__init__(launch, observe)
        self._script = ScriptState(devices=launch.devices, max_restarts=launch.max_script_restarts)
        self._is_adopted = False
        self._ports: dict[int, int] = {}

    def _decide(self, event: events.Event) -> None:
        if self._is_adopted:
            super()._decide(event)
            self._judge_end(event)
            return
        if isinstance(event, events.Received) and isinstance(event.message, wire.Hello):
            self._is_adopted = True
            for rank, incarnation in self._script.running.items():
                super()._decide(events.Spawned(rank=rank, incarnation=incarnation))
            super()._decide(event)
            return
        decision = decide_script(self._script, event, self._last_words(event))
        self._script = decision.state
        if decision.reason:
            self._record("decision", reason=decision.reason)
        for action in decision.actions:
            self._carry_out(action)

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
        is_complete = self._state.is_over and self._end is not None and not self._end.is_failed
        if is_complete and isinstance(event, events.Exited) and not event.is_clean:
            error = f"the run was complete, then rank {event.rank} of the script failed: {event.how}"
            self._end = events.End(is_failed=True, error=error)

    def _ticket(self, spawn: events.Spawn) -> Ticket:
        """The ranks of one incarnation find each other at one port, if they look for each other at all."""
        ticket = super()._ticket(spawn)
        if spawn.incarnation not in self._ports:
            self._ports[spawn.incarnation] = _free_port(ticket.agent_host)
        port = self._ports[spawn.incarnation]
        return replace(ticket, settings={**ticket.settings, "rendezvous_port": port})

    def _on_signal(self, number: int) -> None:
        super()._on_signal(number)
        if not self._is_adopted or self._state.is_over:
            for rank in self._ranks.values():
                if not rank.is_reaped:
                    rank.kill_group(signal.SIGTERM)

    def _dismiss(self) -> None:
        """Wait until the scripts have ended by themselves, or somebody has had enough."""
        complete = self._end
        if complete is None or complete.is_failed:
            return
        told_s = time.monotonic() + _PATIENCE_S
        while (left := self._left()) and self._end is complete:
            self._turn(_TURN_S)
            if time.monotonic() > told_s:
                told_s = math.inf
                ranks = ", ".join(map(str, left))
                self._record("decision", reason=f"the run is complete; the script goes on in rank {ranks}")

    def _left(self) -> list[int]:
        return [rank.rank for rank in self._ranks.values() if not rank.is_reaped]

    def _outcome(self) -> Outcome:
        outcome = super()._outcome()
        if not self._is_adopted and self._signal is not None and outcome.state is RunState.DONE:
            return replace(outcome, state=RunState.STOPPED)
        return outcome


def _free_port(host: str) -> int:
    """A port that nobody listens at now."""
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        return port
