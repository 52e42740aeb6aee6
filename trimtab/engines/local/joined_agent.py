"""The agent of every host but the first: parent of its ranks, told by the coordinator what to do.

It tries to reach the coordinator for a bounded time. A host that hears nothing for longer than its lease takes its
ranks out of their epoch, for the others may go on without it.
"""

import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.engines.interfaces import check_name, check_variables, rank_variables
from trimtab.engines.launch import Launch, launch_from_json
from trimtab.engines.local.coordinator import own_versions
from trimtab.engines.local.rank_host import RankHost
from trimtab.engines.local.uplink import Caller, Uplink
from trimtab.engines.stop_signals import StopSignals
from trimtab.ledger import EventKind
from trimtab.policy import events, host_wire, wire
from trimtab.policy.coordinator import AgentOrder, Conclude, Line
from trimtab.terms import ExitCode, InputError

_TURN_S = 0.1
_BEAT_S = 0.5
_LAST_WORD_S = 5.0
"""How long the coordinator may take to hear the last reports."""
_DISMISSAL_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """What a welcome says."""

    host: int
    launch: Launch
    lease_s: float
    patience_s: float


class JoinedAgent:
    """Runs the ranks of one host until the run is over. Call ``run`` once, on the main thread.

    Args:
        address: Of the coordinator.
        token: Of the run.
        interface: That the ranks talk over; None for the one that leads to the coordinator.
        patience_s: How long to try before the run has said how long.
        say: Tells people something.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        token: str,
        interface: str | None,
        patience_s: float,
        say: Callable[[str], None],
    ) -> None:
        if interface is not None:
            check_name(interface, "--interface")
        self._address, self._interface, self._say = address, interface, say
        self._selector = selectors.DefaultSelector()
        self._patience_s = patience_s
        self._uplink = Uplink(
            address,
            self._selector,
            Caller(
                token=token,
                versions=own_versions(),
                running=lambda: self._ranks.running if self._ranks is not None else (),
                carry_out=self._carry_out,
                on_welcome=self._on_welcome,
            ),
            beat_s=_BEAT_S,
        )
        self._ranks: RankHost | None = None
        self._membership: Membership | None = None
        self._has_fenced = False
        self._end: Conclude | None = None
        self._signal: int | None = None
        self._is_forced = False

    def run(self) -> int:
        """Until the run is over, the host leaves, or the coordinator cannot be reached; the exit code."""
        self._signals = StopSignals(self._selector, self._on_signal)
        try:
            while self._end is None and self._signal is None:
                self._turn()
                if self._uplink.refusal is not None:
                    raise InputError(f"this host may not join: {self._uplink.refusal}")
                if time.monotonic() - self._uplink.answered_s > self._patience_s:
                    host, port = self._address
                    self._say(
                        f"the coordinator at {host}:{port} could not be reached for {self._patience_s:g} s "
                        f"({self._uplink.problem}); the ranks of this host end"
                    )
                    return ExitCode.CUT_OFF
            return self._leave()
        finally:
            self._close()

    # The loop.

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TURN_S):
            key.data()
        self._uplink.turn()
        if self._ranks is not None:
            self._ranks.turn()
        self._mind_the_lease()

    def _mind_the_lease(self) -> None:
        if self._membership is None or self._ranks is None:
            return
        silent_s = time.monotonic() - self._uplink.answered_s
        if silent_s <= self._membership.lease_s:
            self._has_fenced = False
            return
        if self._uplink.is_connected:
            self._uplink.drop(f"nothing was answered for {silent_s:.1f} s")
        if not self._has_fenced:
            self._has_fenced = True
            reason = f"this host has not heard of the coordinator for {silent_s:.1f} s"
            self._say(f"{reason}; its ranks wait")
            for rank, incarnation in self._ranks.running[:1]:
                trouble = wire.Trouble(epoch=self._ranks.epoch, error=reason, t_ns=time.monotonic_ns())
                self._uplink.report(events.Received(rank=rank, incarnation=incarnation, message=trouble))
            self._ranks.fence(reason)

    def _on_welcome(self, welcome: host_wire.Welcome) -> None:
        launch = launch_from_json(welcome.launch)
        known = self._membership
        self._membership = Membership(
            host=welcome.host, launch=launch, lease_s=welcome.lease_s, patience_s=welcome.patience_s
        )
        self._patience_s = welcome.patience_s
        if known is not None and known.launch.attempt == launch.attempt:
            self._say(f"host {welcome.host} is in touch with the coordinator again")
            return
        self._end_ranks()
        check_variables(launch.environment)
        address = self._uplink.own_address or "127.0.0.1"
        self._ranks = RankHost(
            launch,
            self._selector,
            report=self._uplink.report,
            refused=self._say,
            address=address,
            variables=rank_variables(launch, address=address, interface=self._interface).items(),
        )
        self._say(f"host {welcome.host} of run {launch.run}, at {address}")

    def _carry_out(self, order: AgentOrder) -> None:
        if self._ranks is None or self._signal is not None:
            return
        self._end = self._ranks.carry_out(order) or self._end

    # Ends.

    def _on_signal(self, number: int) -> None:
        self._is_forced = self._signal is not None
        self._signal = number

    def _leave(self) -> int:
        """Say so, end the ranks, and wait until all of that has been heard."""
        end = self._end
        if end is None:  # asked to leave: the others go on, and finish the step without this host
            self._say("this host leaves the run")
            self._uplink.report(self._leaving())
            self._wait_to_be_heard()
        elif not end.is_failed:
            deadline_s = time.monotonic() + _DISMISSAL_S
            while self._ranks is not None and self._ranks.running and time.monotonic() < deadline_s:
                self._turn()
        self._end_ranks()
        self._uplink.report(self._leaving(), self._releases())
        self._wait_to_be_heard()
        if end is None:
            return ExitCode.INTERRUPTED if self._signal == signal.SIGINT else ExitCode.TERMINATED
        if end.error:
            self._say(end.error)
        if end.is_cut_off:
            return ExitCode.CUT_OFF
        return ExitCode.RUN_FAILED if end.is_failed else ExitCode.DONE

    def _leaving(self) -> events.HostLost:
        host = -1 if self._membership is None else self._membership.host
        return events.HostLost(host=host, reason="leaves", is_leaving=True, fault_ns=time.monotonic_ns())

    def _releases(self) -> list[Line]:
        if self._membership is None:
            return []
        placement, now_ns = self._membership.launch.placement, time.monotonic_ns()
        return [
            Line(kind=EventKind.RELEASED, t_ns=now_ns, fields={"device": device})
            for device, host in enumerate(placement)
            if host == self._membership.host
        ]

    def _wait_to_be_heard(self) -> None:
        deadline_s = time.monotonic() + _LAST_WORD_S
        while not self._uplink.is_heard and not self._is_forced and time.monotonic() < deadline_s:
            for key, _ in self._selector.select(_TURN_S):
                key.data()
            self._uplink.turn()

    def _end_ranks(self) -> None:
        if self._ranks is not None:
            self._ranks.kill_everything()

    def _close(self) -> None:
        self._end_ranks()
        if self._ranks is not None:
            self._ranks.close()
        self._signals.close()
        self._uplink.close()
        self._selector.close()
