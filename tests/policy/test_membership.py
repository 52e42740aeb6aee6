"""Membership as a table of values: what the agent would do, without a process, a socket or a clock."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.policy import Budget, Seating, decide, events, wire
from trimtab.policy import members as m
from trimtab.terms import OnLoss, Phase


@dataclass
class Agent:
    """Drives `decide` as the agent does, and keeps what it would do."""

    state: m.State
    now_s: float = 100.0
    done: list[events.Action] = field(default_factory=list)

    def feed(self, event: events.Event) -> list[events.Action]:
        decision = decide(self.state, event, now_s=self.now_s, now_ns=int(self.now_s * 1e9))
        self.state = decision.state
        self.done += decision.actions
        return list(decision.actions)

    def say(self, rank: int, message: wire.Message, incarnation: int = 0) -> list[events.Action]:
        return self.feed(events.Received(rank=rank, incarnation=incarnation, message=message))

    def exit(
        self, rank: int, how: str = "signal SIGKILL", incarnation: int = 0, clean: bool = False
    ) -> list[events.Action]:
        return self.feed(
            events.Exited(rank=rank, incarnation=incarnation, how=how, is_clean=clean, fault_ns=1)
        )

    def beat_all(self, *, but: int = -1, waiting: tuple[int, ...] = ()) -> None:
        for member in list(self.state.members.values()):
            if member.rank != but:
                progress = self.state.members[member.rank].progress + (member.rank not in waiting)
                self.say(member.rank, beat(progress, waiting=member.rank in waiting), member.incarnation)


def beat(progress: int, *, waiting: bool = False) -> wire.Beat:
    return wire.Beat(step=5, phase=Phase.COMPUTE, progress=progress, waiting=waiting, t_ns=0)


def park(left: int, committed: int, held: tuple[int, ...] = ()) -> wire.Parked:
    return wire.Parked(left_epoch=left, committed=committed, held=held, store_port=7000, t_ns=0)


def trouble(epoch: int) -> wire.Trouble:
    return wire.Trouble(epoch=epoch, error="connection reset", t_ns=7)


def hello(rank: int, incarnation: int = 0) -> wire.Hello:
    return wire.Hello(rank=rank, incarnation=incarnation, pid=1, proof="", fingerprint={})


def forms(actions: list[events.Action]) -> dict[int, wire.Form]:
    return {
        a.rank: a.message for a in actions if isinstance(a, events.Tell) and isinstance(a.message, wire.Form)
    }


def fences(actions: list[events.Action]) -> set[int]:
    return {a.rank for a in actions if isinstance(a, events.Tell) and isinstance(a.message, wire.Fence)}


def running(num_ranks: int, **changes: object) -> Agent:
    """An agent whose ranks train in epoch 1, with four shares."""
    agent = Agent(m.State(num_shares=4, on_loss=OnLoss.EXACT, limits=m.Limits(), **changes))  # type: ignore[arg-type]
    for rank in range(num_ranks):
        agent.feed(events.Spawned(rank=rank, incarnation=0))
        agent.say(rank, hello(rank))
    for rank in range(num_ranks):
        actions = agent.say(rank, park(-1, 0))
    assert set(forms(actions)) == set(range(num_ranks))
    agent.done.clear()
    return agent


def test_an_epoch_forms_when_everybody_is_there() -> None:
    """Forming early would leave a rank out for good."""
    agent = running(4)
    assert agent.state.epoch == 1
    assert agent.state.roster == (0, 1, 2, 3)


def test_a_death_fences_the_others_and_the_orphans_are_taken_over() -> None:
    """The step must be finished by the survivors with what they hold."""
    agent = running(4)
    actions = agent.exit(2)
    assert fences(actions) == {0, 1, 3}
    agent.say(0, park(1, 5, (0,)))
    agent.say(1, park(1, 5, (1,)))
    form = forms(agent.say(3, park(1, 5, (3,))))[0]
    assert (form.epoch, form.members, form.step, form.is_healing) == (2, (0, 1, 3), 5, False)
    assert form.owners == (0, 1, 0, 3)


def test_a_ragged_commit_heals_from_who_is_ahead() -> None:
    """One survivor applied the step, one did not: both must go on with the newer state."""
    agent = running(3)
    agent.exit(1)
    agent.say(0, park(1, 5, (0, 1)))
    form = forms(agent.say(2, park(1, 6)))[0]
    assert (form.step, form.source, form.is_healing) == (6, 2, True)
    assert form.owners == (0, 0, 2, 2), "gradients of the step before are worth nothing"


def test_where_all_are_needed_an_epoch_waits_for_the_replacement() -> None:
    """Ranks that hold pieces cannot go on without the one that holds the rest."""
    agent = running(3, seating=Seating(layouts=(((0, 1, 2),),)))
    agent.exit(1)
    for rank in (0, 2):
        assert not forms(agent.say(rank, park(1, 5)))
    agent.feed(events.Spawned(rank=1, incarnation=1))
    agent.say(1, hello(1, 1), 1)
    formed = forms(agent.say(1, park(0, 4), 1))
    assert set(formed) == {0, 1, 2}
    assert formed[0].is_healing


def test_a_second_death_while_reforming_forms_without_both() -> None:
    """Waiting for a rank that died meanwhile would hang the run."""
    agent = running(4)
    agent.exit(1)
    agent.say(0, park(1, 5, (0,)))
    agent.say(3, park(1, 5, (3,)))
    form = forms(agent.exit(2))[0]
    assert form.members == (0, 3)
    assert form.owners == (0, 0, 3, 3)


def test_a_death_while_the_new_epoch_forms_fences_that_one() -> None:
    """The fence must name the epoch that is over, or the ranks would ignore it."""
    agent = running(3)
    agent.exit(1)
    agent.say(0, park(1, 5, (0, 1)))
    agent.say(2, park(1, 5, (3,)))
    actions = agent.exit(2)
    fence = next(a.message for a in actions if isinstance(a, events.Tell))
    assert isinstance(fence, wire.Fence)
    assert fence.epoch == 2


def test_silence_is_killed_and_named() -> None:
    """A stopped process holds its sockets open: only silence tells."""
    agent = running(3)
    agent.now_s += 1.5
    agent.beat_all(but=1)
    agent.now_s += 1.0
    assert agent.feed(events.Tick()) == [events.Kill(rank=1, incarnation=0)]
    assert agent.feed(events.Tick()) == [], "one kill is enough"
    actions = agent.exit(1)
    fault = next(a.fault for a in actions if isinstance(a, events.Declare))
    assert fault.cause is events.Cause.SILENT
    assert "no sign of life" in fault.detail


def test_the_one_that_computes_is_stuck_not_the_ones_that_wait() -> None:
    """Killing those who wait for a stuck peer would end the run."""
    agent = running(3)
    for _ in range(40):
        agent.now_s += 1.7
        for rank, waiting in ((0, True), (1, False), (2, True)):
            agent.say(rank, beat(1, waiting=waiting))
    assert agent.feed(events.Tick()) == [events.Kill(rank=1, incarnation=0)]


def test_a_death_explains_the_trouble_that_was_heard_first() -> None:
    """Peers feel a reset before the agent reaps the dead: the fence must carry the death's time and reason."""
    agent = running(3)
    assert agent.say(0, trouble(1)) == []
    fence = next(a.message for a in agent.exit(2) if isinstance(a, events.Tell))
    assert isinstance(fence, wire.Fence)
    assert (fence.fault_ns, "rank 2 is lost" in fence.reason) == (1, True)


def test_trouble_without_a_death_re_forms_all() -> None:
    """A transient network error must cost an epoch, not a rank."""
    agent = running(3)
    agent.say(0, trouble(1))
    agent.now_s += 0.3
    assert fences(agent.feed(events.Tick())) == {0, 1, 2}
    for rank in (0, 1):
        agent.say(rank, park(1, 5, (rank,)))
    assert forms(agent.say(2, park(1, 5, (2, 3))))[0].members == (0, 1, 2)


@pytest.mark.parametrize("parks_before", [True, False])
def test_an_epoch_is_not_formed_with_a_rank_that_is_being_killed(parks_before: bool) -> None:
    """It would be broken at once by the end of that rank: one more epoch, and one failure more of the same step."""
    agent = running(3)
    agent.exit(2)
    if parks_before:
        agent.say(1, park(1, 5, (1,)))
    agent.now_s += 3.0
    assert agent.say(0, beat(1, waiting=True)) == []
    assert agent.feed(events.Tick()) == [events.Kill(rank=1, incarnation=0)]
    assert not forms(agent.say(0, park(1, 5, (0,))))
    if not parks_before:
        assert not forms(agent.say(1, park(1, 5, (1,)))), (
            "it was said before the rank was killed, and heard after"
        )
    assert forms(agent.exit(1))[0].members == (0,)


def test_a_failure_in_user_code_ends_the_run_with_the_first_cause() -> None:
    """The others' network errors are secondary and must not be shown instead."""
    agent = running(2)
    agent.say(1, wire.Failed(step=5, phase=Phase.COMPUTE, error="ValueError: bad record"))
    agent.say(0, trouble(1))
    end = next(a for a in agent.exit(1, "exit code 1") if isinstance(a, events.End))
    assert end == events.End(is_failed=True, error="rank 1 failed: ValueError: bad record")


def test_a_newcomer_is_admitted_at_a_border() -> None:
    """It must not break the step in flight, and must not be forgotten."""
    agent = running(2, is_replacing=True)
    actions = agent.exit(1)
    assert events.Spawn(rank=1, incarnation=1) in actions
    agent.say(0, park(1, 5, (0, 1)))
    agent.feed(events.Spawned(rank=1, incarnation=1))
    agent.say(1, hello(1, 1), incarnation=1)
    admits = agent.say(1, park(-1, 0), incarnation=1)
    assert admits == [events.Tell(rank=0, message=wire.Admit())]
    form = forms(agent.say(0, park(2, 9)))[0]
    assert (form.members, form.step, form.source, form.is_healing) == ((0, 1), 9, 0, True)


def test_a_newcomer_that_dies_before_its_first_word_dies_in_the_step_of_its_epoch() -> None:
    """Four of them would be four losses of step 0, which ends a run as one that fails in the same step again and again."""
    agent = running(2, is_replacing=True)
    agent.state = replace(agent.state, limits=m.Limits(budget=Budget(node_losses=9)))
    for incarnation, step in enumerate((5, 9, 14, 20)):
        agent.exit(1, incarnation=incarnation)
        agent.say(0, park(1 + 2 * incarnation, step, (0, 1)))
        agent.feed(events.Spawned(rank=1, incarnation=incarnation + 1))
        agent.say(1, hello(1, incarnation + 1), incarnation=incarnation + 1)
        agent.say(1, park(-1, 0), incarnation=incarnation + 1)
        agent.say(0, park(2 + 2 * incarnation, step + 1))
        assert agent.state.members[1].step == step + 1
    assert not agent.state.is_over


def test_the_last_rank_is_started_again() -> None:
    """With nobody left the newest checkpoint is the state: the run goes on from there."""
    agent = running(1)
    assert events.Spawn(rank=0, incarnation=1) in agent.exit(0)


def test_losses_beyond_the_budget_end_the_run() -> None:
    """A machine that kills every process must not be paid for ever."""
    agent = running(1)
    for incarnation in range(17):
        actions = agent.exit(0, incarnation=incarnation)
        if any(isinstance(a, events.End) for a in actions):
            break
        agent.feed(events.Spawned(rank=0, incarnation=incarnation + 1))
    assert incarnation == 16
    assert any(isinstance(a, events.End) and a.is_failed for a in actions)


def test_the_run_ends_when_all_have_finished() -> None:
    """And ranks are dismissed, or they would wait for ever."""
    agent = running(2)
    agent.say(0, wire.Finished(step=9, is_stopped=False, results={}))
    actions = agent.say(1, wire.Finished(step=9, is_stopped=False, results={}))
    assert events.End(is_failed=False) in actions
    assert {a.rank for a in actions if isinstance(a, events.Tell)} == {0, 1}


def test_a_death_after_others_finished_calls_them_back() -> None:
    """The lead may have died while it saved: somebody must save in its place."""
    agent = running(2)
    agent.say(1, wire.Finished(step=9, is_stopped=False, results={}))
    assert fences(agent.exit(0)) == {1}
    assert set(forms(agent.say(1, park(1, 9)))) == {1}


def test_a_stop_reaches_ranks_that_are_formed_later() -> None:
    """A stop that arrives during start-up must not be lost."""
    agent = Agent(m.State(num_shares=4, on_loss=OnLoss.EXACT, limits=m.Limits()))
    agent.feed(events.Spawned(rank=0, incarnation=0))
    agent.feed(events.StopAsked())
    actions = agent.say(0, park(-1, 0))
    assert events.Tell(rank=0, message=wire.Stop()) in actions


@pytest.mark.parametrize("on_loss", [OnLoss.REDO, OnLoss.SAME_BATCH])
def test_redo_reassigns_everything(on_loss: OnLoss) -> None:
    """These policies promise to compute the whole step under the new ownership."""
    agent = running(3)
    agent.state = replace(agent.state, on_loss=on_loss)
    agent.exit(2)
    agent.say(0, park(1, 5, (0, 1)))
    assert forms(agent.say(1, park(1, 5, (2,))))[0].owners == (0, 0, 1, 1)


@given(
    st.lists(
        st.tuples(st.sampled_from(["die", "park", "trouble", "tick", "finish"]), st.integers(0, 3)),
        max_size=40,
    )
)
def test_no_order_of_events_forms_an_epoch_with_the_dead(happened: list[tuple[str, int]]) -> None:
    """An epoch that names a dead rank never connects; two live epochs at once would split the run."""
    agent = running(4)
    dead: set[int] = set()
    for what, rank in happened:
        before = agent.state.epoch
        if what == "die":
            actions = agent.exit(rank)
            dead.add(rank)
        elif rank in dead:
            continue
        elif what == "park":
            actions = agent.say(rank, park(agent.state.epoch, 5, (rank,)))
        elif what == "trouble":
            agent.say(rank, trouble(agent.state.epoch))
            agent.now_s += 0.5
            agent.beat_all()
            actions = agent.feed(events.Tick())
        elif what == "finish":
            actions = agent.say(rank, wire.Finished(step=5, is_stopped=False, results={}))
        else:
            actions = agent.feed(events.Tick())
        formed = forms(actions)
        if formed:
            form = next(iter(formed.values()))
            assert form.epoch == before + 1
            assert not set(form.members) & dead
            assert set(formed) == set(form.members)
            assert set(form.owners) <= set(form.members)


def test_a_smaller_run_lets_ranks_go_once_the_others_have_taken_a_step() -> None:
    """What they hold is needed until it has been moved; sooner the run would lose it, later it would pay for nothing."""
    agent = running(3)
    agent.feed(events.ResizeAsked(devices=2))
    for rank in (0, 1, 2):
        formed = forms(agent.say(rank, park(1, 5)))
    assert formed[0].active == (0, 1)
    assert formed[0].members == (0, 1, 2)
    step = wire.Committed(epoch=formed[0].epoch, step=5, t_ns=0)
    told = [action for action in agent.say(0, step) if isinstance(action, events.Tell)]
    assert [(tell.rank, type(tell.message)) for tell in told] == [(2, wire.Dismiss)]
    gone = agent.exit(2, clean=True)
    assert not [action for action in gone if isinstance(action, events.Declare)]
    assert agent.state.is_formed, "nobody is fenced because somebody leaves"


def test_a_larger_run_starts_who_is_missing() -> None:
    """Also who was told to go and is not gone yet: two processes of one rank must not be."""
    agent = running(3)
    agent.feed(events.ResizeAsked(devices=2))
    for rank in (0, 1, 2):
        formed = forms(agent.say(rank, park(1, 5)))
    agent.say(0, wire.Committed(epoch=formed[0].epoch, step=5, t_ns=0))
    asked = agent.feed(events.ResizeAsked(devices=3))
    assert not [action for action in asked if isinstance(action, events.Spawn)]
    (spawn,) = [action for action in agent.exit(2, clean=True) if isinstance(action, events.Spawn)]
    assert (spawn.rank, spawn.incarnation) == (2, 1)


def test_a_layout_that_needs_more_is_not_broken_by_a_wish() -> None:
    """A run that waits for ever for a layout that it cannot have is lost."""
    agent = running(2, seating=Seating(layouts=(((0, 1),),)))
    assert agent.feed(events.ResizeAsked(devices=1)) == []
    assert agent.state.is_formed
