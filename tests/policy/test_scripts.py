"""Scripts that say nothing: when all are started again, and when it is enough."""

from collections.abc import Sequence

from trimtab.policy.events import Action, End, Event, Exited, Kill, Spawn, Spawned, StopAsked, Tick
from trimtab.policy.scripts import LastWords, ScriptState, decide_script


def started(devices: int = 3, max_restarts: int = 2, incarnation: int = 0) -> ScriptState:
    state = ScriptState(devices=devices, max_restarts=max_restarts)
    return after(state, [Spawned(rank=rank, incarnation=incarnation) for rank in range(devices)])[0]


def after(
    state: ScriptState, events: Sequence[Event], words: LastWords | None = None
) -> tuple[ScriptState, list[Action]]:
    actions: list[Action] = []
    for event in events:
        decision = decide_script(state, event, words)
        state = decision.state
        actions += decision.actions
    return state, actions


def ended(rank: int, *, incarnation: int = 0, code: int = 0) -> Exited:
    return Exited(rank=rank, incarnation=incarnation, how=f"exit code {code}", is_clean=code == 0, fault_ns=0)


def test_a_script_is_done_when_its_last_rank_has_ended_cleanly() -> None:
    """Ranks end one after the other; the run must not end with the first."""
    state, actions = after(started(), [ended(0), ended(2)])
    assert (actions, state.is_over) == ([], False)
    state, actions = after(state, [ended(1)])
    assert actions == [End(is_failed=False)]


def test_the_first_rank_that_fails_ends_the_others_and_all_begin_again() -> None:
    """Peers of a dead rank wait in a collective that never ends."""
    state, actions = after(started(), [ended(1, code=1)])
    assert actions == [Kill(rank=0, incarnation=0), Kill(rank=2, incarnation=0)]
    state, actions = after(state, [ended(0, code=-9)])
    assert actions == [], "not before the last one is gone"
    state, actions = after(state, [ended(2, code=-9)])
    assert actions == [Spawn(rank=rank, incarnation=1) for rank in range(3)]
    assert state.num_restarts == 1


def test_a_single_rank_begins_again_at_once() -> None:
    """There is nobody to wait for."""
    _, actions = after(started(devices=1), [ended(0, code=1)])
    assert actions == [Spawn(rank=0, incarnation=1)]


def test_the_limit_of_restarts_ends_the_run_with_the_last_cause() -> None:
    """A script that fails each time must not be paid for for ever."""
    state = started(devices=1, max_restarts=1)
    state, _ = after(state, [ended(0, code=1), Spawned(rank=0, incarnation=1)])
    words = LastWords(error="ValueError: no", is_input_error=False)
    _, actions = after(state, [ended(0, incarnation=1, code=1)], words)
    error = "rank 0 ended (exit code 1): ValueError: no; all ranks were started 2 times"
    assert actions == [End(is_failed=True, error=error)]


def test_an_error_of_the_input_is_not_paid_for_twice() -> None:
    """A wrong argument is as wrong the second time."""
    words = LastWords(error="no such file", is_input_error=True)
    _, actions = after(started(), [ended(1, code=2)], words)
    assert actions[-1] == End(
        is_failed=True, error="rank 1 ended (exit code 2): no such file", is_input_error=True
    )
    assert actions[:-1] == [Kill(rank=0, incarnation=0), Kill(rank=2, incarnation=0)]


def test_ranks_that_were_asked_to_end_may_end_as_they_like() -> None:
    """A script that does not handle SIGTERM dies of it; that is no failure."""
    _, actions = after(started(), [StopAsked(), *(ended(rank, code=-15) for rank in range(3))])
    assert actions == [End(is_failed=False)]


def test_a_wish_to_stop_while_all_are_being_ended_starts_nobody() -> None:
    """Ctrl-C in the middle of a restart must not be answered by new processes."""
    _, actions = after(started(devices=2), [ended(0, code=1), StopAsked(), ended(1, code=-9)])
    assert actions == [Kill(rank=1, incarnation=0), End(is_failed=False)]


def test_old_news_and_the_passing_of_time_change_nothing() -> None:
    """An exit of an earlier incarnation is not one of this."""
    state = started(incarnation=1)
    assert after(state, [ended(0, incarnation=0, code=1), Tick()]) == (state, [])
