"""The agent of the host that a run is started on: parent of its ranks, and of the coordinator, which decides.

One thread, one loop over sockets, process ends and signals. It holds no tensors, imports no torch and decides nothing:
it starts, watches, and does what the coordinator says. When the coordinator dies it starts another; the ranks train on
meanwhile.
"""

import secrets
import selectors
import time

from trimtab.engines.agent_journal import AgentJournal
from trimtab.engines.engine import Observer, Outcome
from trimtab.engines.interfaces import rank_variables
from trimtab.engines.launch import Launch
from trimtab.engines.local.coordinator import own_versions
from trimtab.engines.local.coordinator_process import CoordinatorProcess
from trimtab.engines.local.rank_host import RankHost
from trimtab.engines.local.tokens import take_token, token_path
from trimtab.engines.local.uplink import Caller, Uplink
from trimtab.engines.resizing import take_wanted_devices
from trimtab.engines.stop_signals import StopSignals, is_warned_again
from trimtab.policy import events, host_wire
from trimtab.policy.coordinator import AgentOrder, Conclude, Line
from trimtab.policy.quorum import FIRST
from trimtab.terms import RunState

_TICK_S = 0.1
_DISMISSAL_S = 5.0
"""How long ranks that were dismissed may take to exit before they are killed."""
_FAREWELL_S = 8.0
"""How long the coordinator may take to write down what was reported at the end."""
_HANG_S = 10.0
"""A coordinator that answers nothing for so long, though it lives, is killed, and another takes its place."""


class Agent:
    """Runs one attempt to its end. Call ``run`` once, on the main thread (it handles SIGINT and SIGTERM there)."""

    def __init__(self, launch: Launch, observe: Observer = lambda kind, t_ns, fields: None) -> None:
        self._launch = launch
        self._selector = selectors.DefaultSelector()
        self._journal = AgentJournal(launch, observe)
        self._observe = observe
        self._token = take_token(launch)
        name = secrets.token_hex(8)
        self._coordinator = CoordinatorProcess(
            launch, self._selector, token=self._token, first=name, has_ended=self._on_coordinator_end
        )
        self._uplink = Uplink(
            self._coordinator.address,
            self._selector,
            Caller(
                name=name,
                token=self._token,
                versions=own_versions(),
                running=lambda: self._ranks.running,
                carry_out=self._carry_out,
                on_answer=self._coordinator.has_served,
                on_shown=self._on_shown,
            ),
            beat_s=beat_of(launch),
        )
        self._end: Conclude | None = None
        self._signal: int | None = None
        self._stop_deadline_s: float | None = None
        # Before the first process is started: a signal that came between would end this one without a word.
        self._signals = StopSignals(self._selector, self._on_signal)
        address = self._coordinator.address[0]
        try:
            self._ranks = RankHost(
                launch,
                self._selector,
                report=self._uplink.report,
                refused=self._on_refused,
                address=address,
                variables=rank_variables(launch, address=address, interface=launch.interface).items(),
            )
        except BaseException:
            self._signals.close()
            raise

    def run(self) -> Outcome:
        """Start the ranks and stay until the last process is gone. Leaves no process or socket behind."""
        began_ns = self._journal.begin()
        if self._launch.hosts > 1:
            at, port = self._coordinator.address
            command = f"trimtab agent --join {at}:{port} --token-file {token_path(self._launch)}"
            self._journal.record("decision", reason=f"waiting for {self._launch.hosts - 1} hosts: {command}")
        try:
            self._coordinator.start()
            for rank, host in enumerate(self._launch.placement):
                if host == FIRST:
                    self._ranks.start(rank, self._launch.first_incarnation)
            self._journal.hold(began_ns)
            while self._end is None:
                self._turn()
            self._dismiss()
        finally:
            self._ranks.kill_everything()
            self._say_farewell()
            self._journal.end(self._outcome())
            self._close()
        return self._outcome()

    # The loop.

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TICK_S):
            key.data()
        now_s = time.monotonic()
        self._coordinator.turn()
        self._uplink.turn()
        self._ranks.turn()
        wanted = take_wanted_devices(self._launch.folder)
        if wanted is not None:
            self._uplink.report(events.ResizeAsked(devices=min(wanted, self._launch.devices)))
        if self._stop_deadline_s is not None and now_s > self._stop_deadline_s:
            self._give_up(f"did not end within the grace of {self._launch.grace_s:g} s")
        if self._uplink.refusal is not None:
            self._give_up(self._uplink.refusal)
        if self._coordinator.is_hopeless:
            self._give_up(f"the coordinator ends as soon as it is started; see {self._coordinator.log}")
        if now_s - self._uplink.answered_s > _HANG_S and self._uplink.is_connected:
            self._uplink.drop("it hangs")
            self._coordinator.kill()

    def _carry_out(self, order: AgentOrder) -> None:
        end = self._ranks.carry_out(order)
        self._end = self._end or end

    def _give_up(self, error: str) -> None:
        """End by force, whatever the coordinator thinks, and tell it so."""
        if self._end is None:
            self._end = failed(error)
            self._uplink.report(events.Abandoned(error=error))

    def _on_coordinator_end(self, how: str) -> None:
        if self._end is None:
            reason = f"the coordinator is lost ({how}); the ranks go on, and another one is started"
            self._journal.record("decision", reason=reason)

    def _on_shown(self, shown: host_wire.Shown) -> None:
        self._observe(shown.kind, shown.t_ns, shown.fields)

    def _on_refused(self, reason: str) -> None:
        self._journal.record("refused", reason=reason)

    # Signals and ends.

    def _on_signal(self, number: int) -> None:
        if self._signal is not None:
            if not is_warned_again(self._signal, number):
                self._give_up("stopped by force: a second signal arrived")
            return
        self._signal = number
        self._stop_deadline_s = time.monotonic() + self._launch.grace_s
        line = Line(kind="signal", t_ns=time.monotonic_ns(), fields={"signal": number})
        self._uplink.report(events.StopAsked(), [line])

    def _dismiss(self) -> None:
        """Give the ranks time to exit by themselves after the run's end."""
        deadline_s = time.monotonic() + _DISMISSAL_S
        if self._end is None or self._end.is_failed:
            return
        while self._ranks.running and time.monotonic() < deadline_s:
            self._turn()

    def _say_farewell(self) -> None:
        """Stay until the coordinator has written down all that was reported, and has ended."""
        if self._end is None:
            self._give_up("the agent itself failed")
        leaving = events.HostLost(host=FIRST, reason="ends", is_leaving=True, fault_ns=time.monotonic_ns())
        self._uplink.report(leaving)
        deadline_s = time.monotonic() + _FAREWELL_S
        while time.monotonic() < deadline_s and not self._coordinator.is_hopeless:
            for key, _ in self._selector.select(_TICK_S):
                key.data()
            if self._uplink.is_heard:
                self._coordinator.stop_starting()
            if not self._coordinator.is_running:
                return
            self._coordinator.turn()
            self._uplink.turn()

    def _close(self) -> None:
        self._signals.close()
        self._uplink.close()
        self._ranks.close()
        self._coordinator.close()
        self._selector.close()
        self._journal.close()

    def _outcome(self) -> Outcome:
        return outcome_of(self._end or failed("the agent itself failed"), self._signal)


def failed(error: str) -> Conclude:
    """An end by force."""
    return Conclude(
        is_failed=True, error=error, is_input_error=False, is_cut_off=False, is_stopped=False, results={}
    )


def outcome_of(end: Conclude, signal_number: int | None) -> Outcome:
    """How an attempt ended, for whoever asked for it."""
    state = RunState.STOPPED if end.is_stopped else RunState.DONE
    return Outcome(
        state=RunState.FAILED if end.is_failed else state,
        error=end.error,
        results=dict(end.results),
        signal_number=signal_number,
        is_input_error=end.is_input_error,
        is_cut_off=end.is_cut_off,
    )


def beat_of(launch: Launch) -> float:
    """Seconds between two signs of life, of ranks and of agents."""
    beat_s = launch.rank_settings.get("beat_s", launch.limits.heartbeat_s / 4)
    assert isinstance(beat_s, int | float)
    return float(beat_s)
