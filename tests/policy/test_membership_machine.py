"""Membership under every order of events: ranks come, park, commit, die, freeze and fall silent, and messages are late.

A state machine drives ``decide`` as an agent does, with models of ranks on the other side of the wire. What it holds
after every decision are the promises of ``policy.membership`` in its own words; they are shown failing on planted breaks
of ``decide`` below.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.policy.rank_models import Fleet, Process, active_in
from trimtab.policy import Seating, events, membership, wire
from trimtab.policy import members as m
from trimtab.policy.budgets import Budget
from trimtab.terms import OnLoss, Phase

NUM_STEPS = 5
NUM_SHARES = 4
LIMITS = m.Limits(progress_s=10.0, start_s=20.0, park_s=5.0, budget=Budget(user_errors=1))
LONGEST_S = 600.0
"""In which a run must end once faults stop: far above the sum of all limits."""

Decide = Callable[..., m.Decision]
"""``decide``, or one with a planted break."""


class Membership(RuleBasedStateMachine):
    """One run: its agent, its ranks, and the promises."""

    decide: Decide = staticmethod(membership.decide)

    @initialize(
        num_ranks=st.integers(1, 4),
        on_loss=st.sampled_from([OnLoss.EXACT, OnLoss.REDO, OnLoss.RESCALE, OnLoss.SAME_BATCH]),
        is_replacing=st.booleans(),
        holding=st.sampled_from(["the whole", "a piece", "a piece, twice"]),
    )
    def begin(self, *, num_ranks: int, on_loss: OnLoss, is_replacing: bool, holding: str) -> None:
        """Where ranks hold pieces some are needed, lost ones are replaced, and some wait as spares (`app.launching`)."""
        self.on_loss = {"a piece": OnLoss.ROLLBACK, "a piece, twice": OnLoss.REDO}.get(holding, on_loss)
        shares = 0 if self.on_loss is OnLoss.SAME_BATCH else NUM_SHARES
        self.is_whole = holding == "the whole"
        pieces = Seating(layouts=((tuple(range(num_ranks)),),))
        if holding == "a piece, twice":
            num_ranks, pieces = 4, Seating(layouts=(((0, 1), (2, 3)), ((0, 1),)))
        self.state = m.State(
            num_shares=shares,
            on_loss=self.on_loss,
            limits=LIMITS,
            is_replacing=is_replacing or holding == "a piece",
            seating=Seating() if self.is_whole else pieces,
        )
        self.fleet = Fleet(num_steps=NUM_STEPS, num_shares=shares)
        self.now_s = 1000.0
        self.newest_epoch = 0
        self.fenced: set[int] = set()
        self.forms: dict[int, wire.Form] = {}
        self.told: dict[tuple[int, int], list[wire.Form]] = {}
        self.killed: set[tuple[int, int]] = set()
        self.declared: list[tuple[int, int]] = []
        self.reaped: set[tuple[int, int]] = set()
        self.is_stop_asked = False
        self.end: events.End | None = None
        for rank in range(num_ranks):
            self._carry_out(events.Spawn(rank=rank, incarnation=0))

    # What ranks do.

    @rule(data=st.data())
    def boot(self, data: st.DataObject) -> None:
        """A process comes up: it connects, and a while later it has loaded and parks."""
        process = self._pick(data, lambda p: p.acts and not p.has_parked)
        if process is not None:
            self._boot(process)

    @rule(data=st.data(), number=st.integers(1, 4))
    def deliver(self, data: st.DataObject, number: int) -> None:
        """The agent hears what a rank has said."""
        process = self._pick(data, lambda p: bool(p.said) and not p.is_dead)
        for _ in range(number):
            if process is not None and process.said:
                self._deliver(process)

    @rule(data=st.data(), number=st.integers(1, 4))
    def hear(self, data: st.DataObject, number: int) -> None:
        """A rank hears what the agent has told it."""
        process = self._pick(data, lambda p: p.acts and bool(p.heard))
        for _ in range(number):
            if process is not None and process.acts and process.heard:
                self.fleet.hear(process)

    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """A rank computes one of its shares."""
        process = self._pick(data, lambda p: p.acts and p.epoch is not None)
        if process is not None:
            self.fleet.compute(process)

    @rule()
    def complete(self) -> None:
        """Everybody has given its part of a step."""
        for group in self.fleet.groups.values():
            if self.fleet.can_complete(group):
                self.fleet.complete(group)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """One rank applies a step; its peers may never come to it."""
        process = self._pick(data, self.fleet.can_commit)
        if process is not None:
            self.fleet.commit(process)

    @rule()
    def work(self) -> None:
        """Nothing is in anybody's way for a moment."""
        self._work()

    @rule(data=st.data())
    def save(self, data: st.DataObject) -> None:
        """A checkpoint of what some rank has."""
        process = self._pick(data, lambda p: p.acts and p.epoch is not None)
        if process is not None:
            self.fleet.saved = max(self.fleet.saved, process.committed)

    # What goes wrong.

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """SIGKILL, out of memory, a node that is gone."""
        process = self._pick(data, lambda p: True)
        if process is not None:
            process.is_dead = True

    @rule(data=st.data(), how=st.sampled_from(["is_frozen", "is_stuck", "is_deaf"]))
    def hang(self, data: st.DataObject, how: str) -> None:
        """SIGSTOP, a deadlock, a rank that never leaves its epoch."""
        process = self._pick(data, lambda p: p.acts)
        if process is not None:
            setattr(process, how, True)

    @rule(data=st.data())
    def break_collective(self, data: st.DataObject) -> None:
        """A rank loses its peers, because one is gone or for no reason that anybody finds."""
        process = self._pick(data, lambda p: p.acts and p.epoch is not None and not p.is_finished)
        if process is not None:
            self._trouble(process)

    @rule(data=st.data())
    def raise_error(self, data: st.DataObject) -> None:
        """The user's code raises."""
        process = self._pick(data, lambda p: p.acts and p.epoch is not None and not p.is_finished)
        if process is not None:
            process.said.append(wire.Failed(step=process.committed, phase=Phase.COMPUTE, error="ValueError"))
            process.is_dead = True

    @rule(data=st.data())
    def reap(self, data: st.DataObject) -> None:
        """The kernel tells the agent of a death, after everything that the process still said."""
        self._reap(data.draw(st.sampled_from(self._unreaped()))) if self._unreaped() else None

    @precondition(lambda self: self.reaped)
    @rule(data=st.data())
    def a_ghost_speaks(self, data: st.DataObject) -> None:
        """A process that is no longer a member says hello: it is sent away, and changes nothing."""
        rank, incarnation = data.draw(st.sampled_from(sorted(self.reaped)))
        if self.end is not None or self.state.incarnations.get(rank) != incarnation + 1:
            return
        hello = wire.Hello(rank=rank, incarnation=incarnation, pid=1, proof="", fingerprint={})
        decision = self._decision(events.Received(rank=rank, incarnation=incarnation, message=hello))
        assert decision.state == self.state
        assert [type(a.message) for a in decision.actions if isinstance(a, events.Tell)] == [wire.Dismiss]

    @rule()
    def stop(self) -> None:
        """Somebody wants the run to end."""
        self.is_stop_asked = True
        self._feed(events.StopAsked())

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 4.0, 15.0]))
    def pass_time(self, seconds: float) -> None:
        """Healthy ranks beat meanwhile; what was said long ago has arrived."""
        self._pass_time(seconds)

    # The end.

    def teardown(self) -> None:
        """Faults stop, and everybody does what they can: the run ends, done or given up, and nobody waits for ever."""
        if not hasattr(self, "state"):
            return
        until_s = self.now_s + LONGEST_S
        while self.end is None and self.now_s < until_s:
            self._work()
            self._pass_time(1.0)
        assert self.end is not None, f"the run waits for ever: {self.state}"
        if (
            not self.end.is_failed and not self.end.is_stopped
        ):  # stopped before the first epoch: there is nothing to compare
            self._assert_done()

    def _assert_done(self) -> None:
        """Every rank that took part has the same state, and that of the last step if nobody asked for less."""
        if not self.is_stop_asked:
            assert self.forms, "the run is done, and nobody has trained"
        active = active_in(self.forms[self.newest_epoch]) if self.forms else ()
        ended = [self.fleet.current(rank) for rank in active]
        steps = {process.committed for process in ended if process is not None and not process.is_dead}
        assert len(steps) <= 1, f"ranks ended after different numbers of steps: {steps}"
        assert self.is_stop_asked or steps <= {NUM_STEPS}

    # How it is driven.

    def _pick(self, data: st.DataObject, fits: Callable[[Process], bool]) -> Process | None:
        found = [process for process in self.fleet.living if fits(process)] if self.end is None else []
        return data.draw(st.sampled_from(found), label="process") if found else None

    def _boot(self, process: Process) -> None:
        if not process.is_connected:
            process.connect()
        else:
            process.park(left=-1)

    def _trouble(self, process: Process) -> None:
        assert process.epoch is not None
        process.is_troubled = True
        process.said.append(wire.Trouble(epoch=process.epoch, error="connection reset", t_ns=1))

    def _work(self) -> None:
        """One round of everything that living ranks do by themselves."""
        for process in self.fleet.living:
            if process.acts and not process.has_parked:
                self._boot(process)
        for process in list(self.fleet.processes):
            while process.said and self.end is None and not process.is_dead:
                self._deliver(process)
        for process in self.fleet.living:
            while process.acts and process.heard:
                self.fleet.hear(process)
        self.complete()
        for process in self.fleet.living:
            if self.fleet.can_commit(process):
                self.fleet.commit(process)
            if self.fleet.feels_a_loss(process):
                self._trouble(process)
        for process in self._unreaped():
            self._reap(process)

    def _pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s and self.end is None:
            self.now_s = min(until_s, self.now_s + LIMITS.heartbeat_s / 4)
            for process in self.fleet.living:
                if process.is_connected and not process.is_frozen:
                    process.said.append(process.beat(waiting=self.fleet.is_waiting(process)))
                while process.said and seconds >= 0.3:
                    self._deliver(process)
            self._feed(events.Tick())

    def _deliver(self, process: Process) -> None:
        message = process.said.popleft()
        self._feed(events.Received(rank=process.rank, incarnation=process.incarnation, message=message))

    def _unreaped(self) -> list[Process]:
        return [p for p in self.fleet.processes if p.is_dead and (p.rank, p.incarnation) not in self.reaped]

    def _reap(self, process: Process) -> None:
        while process.said:
            self._deliver(process)
        self.reaped.add((process.rank, process.incarnation))
        how = "exit code 0" if process.is_clean else "signal SIGKILL"
        self._feed(
            events.Exited(
                rank=process.rank,
                incarnation=process.incarnation,
                how=how,
                is_clean=process.is_clean,
                fault_ns=int(self.now_s * 1e9),
            )
        )

    def _decision(self, event: events.Event) -> m.Decision:
        return self.decide(self.state, event, now_s=self.now_s, now_ns=int(self.now_s * 1e9))

    def _feed(self, event: events.Event) -> None:
        if self.end is not None:
            assert not self._decision(event).actions, "the run is over, and still something is done"
            return
        decision = self._decision(event)
        self.state = decision.state
        self._check(decision)
        for action in decision.actions:
            self._carry_out(action)

    def _carry_out(self, action: events.Action) -> None:
        match action:
            case events.Tell(rank=rank, message=message):
                process = self.fleet.current(rank)
                if process is not None and process.is_connected and not process.is_dead:
                    process.heard.append(message)
            case events.Kill(rank=rank, incarnation=incarnation):
                process = self.fleet.current(rank)
                if process is not None and process.incarnation == incarnation:
                    process.is_dead = True
            case events.Spawn(rank=rank, incarnation=incarnation):
                assert all(p.is_dead for p in self.fleet.processes if p.rank == rank), (
                    "two processes of a rank"
                )
                self.fleet.spawn(rank, incarnation)
                self._feed(events.Spawned(rank=rank, incarnation=incarnation))
            case events.End():
                self.end = action

    # The promises.

    def _check(self, decision: m.Decision) -> None:
        tells = [action for action in decision.actions if isinstance(action, events.Tell)]
        forms = {tell.rank: tell.message for tell in tells if isinstance(tell.message, wire.Form)}
        fences = {tell.rank: tell.message for tell in tells if isinstance(tell.message, wire.Fence)}
        if forms:
            self._check_formed(forms)
        if fences:
            self._check_fenced(fences)
        for rank in {tell.rank for tell in tells}:
            kinds = [type(tell.message) for tell in tells if tell.rank == rank]
            assert len(kinds) == len(set(kinds)), f"rank {rank} is told the same twice at once: {kinds}"
            assert sum(kind in (wire.Form, wire.Fence, wire.Dismiss) for kind in kinds) <= 1, (
                f"rank {rank} is told two things that contradict each other: {kinds}"
            )
        for action in decision.actions:
            if isinstance(action, events.Kill):
                self.killed.add((action.rank, action.incarnation))
            elif isinstance(action, events.Declare):
                lost = (action.fault.rank, action.fault.incarnation)
                assert lost in self.reaped, f"{lost} is declared lost, and nobody has seen it end"
                assert lost not in self.declared, f"{lost} is lost twice"
                self.declared.append(lost)

    def _check_formed(self, forms: dict[int, wire.Form]) -> None:
        form = next(iter(forms.values()))
        assert all(other == form for other in forms.values()), "ranks are told of different epochs at once"
        assert set(forms) == set(form.members), "an epoch is formed that not all of its members hear of"
        assert form.epoch > self.newest_epoch, "the number of an epoch does not grow"
        inside = [(p.rank, p.epoch) for p in self.fleet.living if p.epoch is not None]
        assert not inside, f"epoch {form.epoch} is formed while ranks are in an older one: {inside}"
        processes = []
        for rank in form.members:
            process = self.fleet.current(rank)
            assert process is not None
            assert process.has_parked
            assert (rank, process.incarnation) not in self.killed, (
                f"rank {rank} was killed, and is waited for"
            )
            assert (rank, process.incarnation) not in self.reaped, f"rank {rank} is gone, and is waited for"
            processes.append(process)
        self._check_state(form, processes)
        self._check_owners(form, processes)
        self.newest_epoch = form.epoch
        self.forms[form.epoch] = form

    def _check_state(self, form: wire.Form, processes: list[Process]) -> None:
        """Only what was committed counts, and nobody who is ahead is thrown back by one who is behind."""
        committed = {process.rank: process.committed for process in processes}
        assert form.step <= max(committed.values()), "a step is counted that nobody has committed"
        if self.is_whole:
            assert form.step == max(committed.values()), "a step that a living rank has is thrown away"
            assert committed[form.source] == form.step, "the source has another state than it shall give"
            assert form.is_healing == any(step != form.step for step in committed.values())

    def _check_owners(self, form: wire.Form, processes: list[Process]) -> None:
        """Every share has one owner among the members; who holds its gradient keeps it, where gradients are kept."""
        if not self.state.num_shares:
            return
        left_out = {-1} if self.on_loss is OnLoss.RESCALE else set[int]()
        assert len(form.owners) == self.state.num_shares, "a share has no owner"
        assert set(form.owners) <= set(active_in(form)) | left_out, "a share belongs to nobody who is there"
        if self.on_loss in (OnLoss.EXACT, OnLoss.RESCALE):
            for share, owner in enumerate(form.owners):
                holders = {p.rank for p in processes if p.committed == form.step and share in p.held}
                assert not holders or owner in holders, f"the gradient of share {share} is computed again"

    def _check_fenced(self, fences: dict[int, wire.Fence]) -> None:
        (epoch,) = {fence.epoch for fence in fences.values()}
        assert epoch == self.newest_epoch, "a fence names an epoch that is over"
        assert epoch not in self.fenced, "an epoch is fenced twice"
        self.fenced.add(epoch)
        inside = {p.rank for p in self.fleet.living if p.epoch == epoch}
        assert inside <= set(fences), "a rank stays in an epoch that is over, and nobody tells it"


QUICK = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
Membership.TestCase.settings = QUICK
TestMembership = Membership.TestCase


# Planted breaks: each changes one thing that `decide` says, as a slip in its code would.


def _changed(change: Callable[[m.Decision, events.Event], m.Decision]) -> Decide:
    def decide(state: m.State, event: events.Event, *, now_s: float, now_ns: int) -> m.Decision:
        return change(membership.decide(state, event, now_s=now_s, now_ns=now_ns), event)

    return decide


def _in_forms(change: Callable[[wire.Form, int], wire.Form]) -> Decide:
    def of(action: events.Action) -> events.Action:
        if isinstance(action, events.Tell) and isinstance(action.message, wire.Form):
            return replace(action, message=change(action.message, action.rank))
        return action

    return _changed(lambda d, event: replace(d, actions=tuple(map(of, d.actions))))


def _without(kind: type[wire.Message]) -> Decide:
    """The last rank that should be told is forgotten."""

    def change(decision: m.Decision, event: events.Event) -> m.Decision:
        told = [a for a in decision.actions if isinstance(a, events.Tell) and isinstance(a.message, kind)]
        return replace(decision, actions=tuple(a for a in decision.actions if a not in told[-1:]))

    return _changed(change)


def _impatient(state: m.State, event: events.Event, *, now_s: float, now_ns: int) -> m.Decision:
    """Whoever trains counts as parked as soon as an epoch is over."""
    if not state.is_formed and state.epoch:
        members = {
            rank: replace(member, standing=m.Standing.PARKED)
            if member.standing is m.Standing.TRAINING
            else member
            for rank, member in state.members.items()
        }
        state = replace(state, members=members)
    return membership.decide(state, event, now_s=now_s, now_ns=now_ns)


def _forgets_the_condemned(state: m.State, event: events.Event, *, now_s: float, now_ns: int) -> m.Decision:
    """A rank that was killed for hanging is never buried."""
    if isinstance(event, events.Exited) and event.rank in state.condemned:
        return m.Decision(state=state)
    return membership.decide(state, event, now_s=now_s, now_ns=now_ns)


def _spares_the_silent(decision: m.Decision, event: events.Event) -> m.Decision:
    return replace(decision, actions=tuple(a for a in decision.actions if not isinstance(a, events.Kill)))


def _buries_twice(decision: m.Decision, event: events.Event) -> m.Decision:
    again = tuple(action for action in decision.actions if isinstance(action, events.Declare))
    return replace(decision, actions=(*decision.actions, *again))


def _dismisses_members(decision: m.Decision, event: events.Event) -> m.Decision:
    forms = [a for a in decision.actions if isinstance(a, events.Tell) and isinstance(a.message, wire.Form)]
    dismissed = tuple(replace(tell, message=wire.Dismiss(reason="no room")) for tell in forms[:1])
    return replace(decision, actions=(*decision.actions, *dismissed))


BREAKS: dict[str, tuple[Decide, str]] = {
    "forms while ranks are in the old epoch": (
        _impatient,
        "while ranks are in an older one|names an epoch that is over|waits for ever",
    ),
    "epoch numbers stand still": (_in_forms(lambda form, _: replace(form, epoch=1)), "does not grow"),
    "a rank hears of other owners": (
        _in_forms(lambda form, rank: replace(form, owners=(rank,) * len(form.owners))),
        "different epochs at once",
    ),
    "a share is left out": (
        _in_forms(lambda form, _: replace(form, owners=(-1, *form.owners[1:]))),
        "belongs to nobody|is computed again",
    ),
    "a step is counted ahead": (
        _in_forms(lambda form, _: replace(form, step=form.step + 1)),
        "nobody has committed",
    ),
    "a member is not told": (
        _without(wire.Form),
        "not all of its members hear of|waits for ever|a fence names an epoch that is over",
    ),
    "a fence is not told": (_without(wire.Fence), "nobody tells it|waits for ever"),
    "the condemned are never buried": (_forgets_the_condemned, "waits for ever"),
    "the silent are never killed": (_changed(_spares_the_silent), "waits for ever"),
    "a loss is declared twice": (_changed(_buries_twice), "lost twice"),
    "a member is sent away": (_changed(_dismisses_members), "contradict each other"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_planted_break_is_found(name: str) -> None:
    """A machine that holds whatever `decide` says would show nothing."""
    broken, words = BREAKS[name]

    class Broken(Membership):
        decide = staticmethod(broken)

    searching = settings(
        QUICK,
        max_examples=300,
        phases=[Stage.generate],  # the smallest example is of interest where something is to be mended
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
    )
    with pytest.raises(AssertionError, match=words):
        run_state_machine_as_test(Broken, settings=searching)
