"""Hang, stop, livelock and silence are told apart, by values on one clock."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policy.test_membership import Agent, beat, fences, forms, hello, park, running
from trimtab.policy import events, wire
from trimtab.policy import members as m
from trimtab.policy.seating import Seating
from trimtab.terms import OnLoss, Phase

CALM_S = 1.5
"""Between two signs of life."""


def says(progress: int, *, waiting: bool = False, phase: Phase = Phase.COMPUTE, t_ns: int = 0) -> wire.Beat:
    return wire.Beat(
        step=5, phase=phase, progress=progress, waiting=waiting, t_ns=t_ns, operation="all_gather of step 4"
    )


def fault_of(agent: Agent, rank: int) -> events.Fault:
    return next(a.fault for a in agent.exit(rank) if isinstance(a, events.Declare))


def live(agent: Agent, seconds: float, **beats: wire.Beat | None) -> list[events.Action]:
    """Time passes; rank 0 says what ``r0`` is, and so on, again and again, with growing progress if it is busy."""
    done: list[events.Action] = []
    end_s = agent.now_s + seconds
    while agent.now_s < end_s and not done:
        agent.now_s += CALM_S
        for name, said in beats.items():
            if said is not None:
                rank = int(name[1:])
                progress = said.progress + (
                    0 if said.progress >= 0 else agent.state.members[rank].progress + 2
                )
                agent.say(rank, replace(said, progress=progress))
        done += agent.feed(events.Tick())
    return done


BUSY = -1
"""Progress that grows."""


def test_a_stopped_process_is_called_stopped() -> None:
    """Whoever reads it continues the process, and looks for no fault of the network."""
    agent = running(3)
    agent.feed(events.Stopped(rank=1, incarnation=0))
    assert live(agent, 10, r0=says(1, waiting=True), r2=says(1, waiting=True)) == [
        events.Kill(rank=1, incarnation=0)
    ]
    fault = fault_of(agent, 1)
    assert fault.cause is events.Cause.STOPPED
    assert fault.detail.startswith("stopped, no sign of life")


def test_a_process_that_was_continued_in_time_is_none() -> None:
    """A debugger, or a machine that froze for a second, must cost nobody a rank."""
    agent = running(2)
    agent.feed(events.Stopped(rank=1, incarnation=0))
    agent.say(1, beat(2))
    agent.now_s += 2.5
    agent.say(0, beat(2))
    agent.feed(events.Tick())
    assert fault_of(agent, 1).cause is events.Cause.SILENT


def test_a_hang_names_phase_step_and_the_last_collective() -> None:
    """S-FT-02: hours are spent on finding which rank hung, and in what."""
    agent = running(3)
    waits = says(1, waiting=True)
    assert live(agent, 70, r0=waits, r1=says(7), r2=waits) == [events.Kill(rank=1, incarnation=0)]
    fault = fault_of(agent, 1)
    assert fault.cause is events.Cause.STUCK
    assert "in phase compute of step 5; its last collective: all_gather of step 4" in fault.detail


def test_a_livelock_is_the_rank_that_is_busy_and_commits_nothing() -> None:
    """Heartbeat and progress go on: without a limit for the step it would run, and be paid for, for ever."""
    agent = running(3)
    waits = says(1, waiting=True)
    agent.state = replace(agent.state, limits=m.Limits(step_s=100.0))
    assert live(agent, 120, r0=waits, r1=says(BUSY), r2=waits) == [events.Kill(rank=1, incarnation=0)]
    fault = fault_of(agent, 1)
    assert fault.cause is events.Cause.LIVELOCK
    assert "busy for" in fault.detail


def test_a_rank_that_says_it_waits_and_moves_is_busy() -> None:
    """It spins inside of a collective: no peer moves, and it would be taken for one of them."""
    agent = running(3)
    waits = says(1, waiting=True)
    agent.state = replace(agent.state, limits=m.Limits(step_s=100.0))
    actions = live(agent, 120, r0=waits, r1=says(BUSY, waiting=True), r2=waits)
    assert actions == [events.Kill(rank=1, incarnation=0)]
    assert fault_of(agent, 1).cause is events.Cause.LIVELOCK


def test_a_long_evaluation_that_moves_is_no_livelock() -> None:
    """A step's limit must not fall on what is no step, nor on the step after it."""
    agent = running(1)
    agent.state = replace(agent.state, limits=m.Limits(step_s=100.0))
    assert live(agent, 300, r0=says(BUSY, phase=Phase.EVALUATE)) == []
    assert live(agent, 90, r0=says(BUSY)) == []


def test_steps_that_commit_are_no_livelock() -> None:
    """However long the run is."""
    agent = running(1)
    agent.state = replace(agent.state, limits=m.Limits(step_s=100.0))
    for step in range(10):
        assert live(agent, 60, r0=says(BUSY)) == []
        agent.say(0, wire.Committed(epoch=1, step=step, t_ns=0))


def test_ranks_that_all_wait_leave_the_epoch_and_nobody_is_killed() -> None:
    """A message that was lost between them would otherwise hold all of them for ever."""
    agent = running(3)
    waits = says(1, waiting=True)
    actions = live(agent, 90, r0=waits, r1=waits, r2=waits)
    assert fences(actions) == {0, 1, 2}
    assert not [a for a in actions if isinstance(a, events.Kill)]
    fence = next(a.message for a in actions if isinstance(a, events.Tell))
    assert isinstance(fence, wire.Fence)
    assert "rank 0 in all_gather of step 4" in fence.reason
    for rank in (0, 1):
        agent.say(rank, park(1, 5, (rank,)))
    assert forms(agent.say(2, park(1, 5, (2, 3))))[0].members == (0, 1, 2)


def test_ranks_that_wait_for_each_other_in_every_epoch_end_the_run() -> None:
    """It would be paid for, and never commit again."""
    agent = running(2)
    for epoch in range(1, 9):
        waits = says(epoch, waiting=True)
        actions = live(agent, 90, r0=waits, r1=waits)
        if any(isinstance(a, events.End) for a in actions):
            break
        agent.say(0, park(epoch, 5, (0, 1)))
        assert forms(agent.say(1, park(epoch, 5, (2, 3))))
    assert epoch == 4
    assert any(isinstance(a, events.End) and a.is_failed for a in actions)


def test_who_was_parked_for_long_is_not_stuck_when_it_is_formed() -> None:
    """It waited for a replacement; nobody may call that a hang."""
    agent = running(2, is_replacing=True, seating=Seating(layouts=(((0, 1),),)))
    agent.exit(1)
    agent.say(0, park(1, 5))
    agent.feed(events.Spawned(rank=1, incarnation=1))
    agent.say(1, hello(1, 1), 1)
    for _ in range(60):
        agent.now_s += CALM_S
        agent.say(0, beat(4))
        agent.say(1, says(agent.state.members[1].progress + 1, phase=Phase.START), 1)
        assert agent.feed(events.Tick()) == []
    assert forms(agent.say(1, park(-1, 0), 1))
    assert agent.feed(events.Tick()) == []


@pytest.mark.parametrize(("is_moving", "is_blamed"), [(True, False), (False, True)])
def test_long_work_before_the_first_step_is_judged_by_its_progress(is_moving: bool, is_blamed: bool) -> None:
    """S-FT-14: who tokenizes for an hour is not dead, and who hangs at it is named with its phase."""
    agent = Agent(m.State(num_shares=4, on_loss=OnLoss.EXACT, limits=m.Limits(phases_s={Phase.START: 5.0})))
    for rank in (0, 1):
        agent.feed(events.Spawned(rank=rank, incarnation=0))
        agent.say(rank, hello(rank))
    agent.say(1, park(-1, 0))
    actions = live(agent, 12, r0=says(BUSY if is_moving else 3, phase=Phase.START), r1=says(1, waiting=True))
    assert actions == ([events.Kill(rank=0, incarnation=0)] if is_blamed else [])
    if is_blamed:
        assert "in phase start" in fault_of(agent, 0).detail


@given(st.lists(st.integers(-(2**62), 2**62), min_size=4, max_size=20))
def test_the_clock_of_another_machine_declares_nobody_dead(times_ns: list[int]) -> None:
    """S-FT-16: liveness is counted on the observer's clock; what a rank's own clock says changes nothing."""
    agent = running(2)
    for number, t_ns in enumerate(times_ns):
        agent.now_s += CALM_S
        for rank in (0, 1):
            agent.say(rank, says(number, t_ns=t_ns))
        assert agent.feed(events.Tick()) == []


def test_a_step_that_uses_up_the_grace_is_given_up() -> None:
    """S-CKP-20: a signal in a step longer than the grace saved nothing; what was finished before it must be."""
    agent = running(2)
    agent.state = replace(agent.state, limits=m.Limits(stop_s=15.0))
    busy = says(BUSY)
    assert live(agent, 3, r0=busy, r1=busy) == []
    agent.feed(events.StopAsked())
    actions = live(agent, 20, r0=busy, r1=busy)
    assert fences(actions) == {0, 1}
    agent.say(0, park(1, 5, (0,)))
    form = forms(agent.say(1, park(1, 5, (2,))))[0]
    assert (form.is_last, form.step) == (True, 5)
    assert live(agent, 30, r0=busy, r1=busy) == [], "once is enough"


def test_a_step_border_since_the_wish_to_stop_is_not_given_up() -> None:
    """The ranks agreed there, and save by now."""
    agent = running(1)
    agent.feed(events.StopAsked())
    agent.now_s += 1
    agent.say(0, wire.Committed(epoch=1, step=4, t_ns=0))
    assert live(agent, 30, r0=says(BUSY)) == []


def test_a_stop_before_the_first_step_ends_within_the_grace() -> None:
    """S-CKP-20: tokenizing goes on for an hour, and there is nothing to save yet: exit 143 and not a failure."""
    agent = Agent(m.State(num_shares=4, on_loss=OnLoss.EXACT, limits=m.Limits()))
    agent.feed(events.Spawned(rank=0, incarnation=0))
    agent.say(0, hello(0))
    agent.feed(events.StopAsked())
    actions = live(agent, 60, r0=says(BUSY, phase=Phase.START))
    assert actions == [
        events.Kill(rank=0, incarnation=0),
        events.End(is_failed=False, is_stopped=True),
    ]


@pytest.mark.parametrize("how", ["signal SIGTERM", "signal SIGUSR1"])
def test_a_process_that_a_scheduler_ended_is_preempted_and_uses_up_no_budget(how: str) -> None:
    """S-FT-08: ten preemptions must not end a run."""
    agent = running(1)
    for incarnation in range(40):
        actions = agent.exit(0, how, incarnation=incarnation)
        fault = next(a.fault for a in actions if isinstance(a, events.Declare))
        assert fault.cause is events.Cause.PREEMPTED
        assert events.Spawn(rank=0, incarnation=incarnation + 1) in actions
        agent.feed(events.Spawned(rank=0, incarnation=incarnation + 1))
