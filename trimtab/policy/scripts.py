"""What happens to the ranks of a script that knows nothing of Trimtab when one of them ends, or all are to end.

Such a rank says nothing, so nothing is known of it but that it runs: there is no heartbeat and no step. What one
rank computes its peers need, so the first that fails ends all, and all are started again, up to a limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trimtab.policy.events import Action, End, Event, Exited, Kill, Spawn, Spawned, StopAsked


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptState:
    """Everything that a decision depends on.

    Args:
        max_restarts: How often all ranks may be started again.
        running: The incarnation of each rank that runs.
        is_restarting: One has failed; the others are being ended, then all are started again.
        is_stopping: All were asked to end; how they do is no news.
    """

    devices: int
    max_restarts: int
    running: Mapping[int, int] = field(default_factory=dict)
    num_restarts: int = 0
    is_restarting: bool = False
    is_stopping: bool = False
    is_over: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LastWords:
    """What a rank of a script wrote down before it ended: the error that ended it, and whether its input was wrong."""

    error: str
    is_input_error: bool


def last_words_name(rank: int, incarnation: int) -> str:
    """The file inside the run's folder in which a rank writes its last words."""
    return f"errors/rank-{rank}-{incarnation}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptDecision:
    """The next state, what to do, and why (empty when nothing is worth saying)."""

    state: ScriptState
    actions: tuple[Action, ...] = ()
    reason: str = ""


def decide_script(state: ScriptState, event: Event, words: LastWords | None = None) -> ScriptDecision:
    """What should be done now. Never raises; events that a silent rank cannot cause change nothing.

    ``words`` are those of the rank whose exit is the event, if it left any.
    """
    if state.is_over:
        return ScriptDecision(state=state)
    match event:
        case Spawned():
            return ScriptDecision(
                state=replace(state, running={**state.running, event.rank: event.incarnation})
            )
        case StopAsked():
            return ScriptDecision(state=replace(state, is_stopping=True), reason="asked to stop")
        case Exited() if state.running.get(event.rank) == event.incarnation:
            running = {rank: number for rank, number in state.running.items() if rank != event.rank}
            return _exited(replace(state, running=running), event, words)
        case _:
            return ScriptDecision(state=state)


def _exited(state: ScriptState, event: Exited, words: LastWords | None) -> ScriptDecision:
    if state.is_stopping or state.is_restarting or event.is_clean:
        return _after_last(state, event.incarnation)
    reason = f"rank {event.rank} ended ({event.how})" + (f": {words.error}" if words is not None else "")
    kills = tuple(Kill(rank=rank, incarnation=number) for rank, number in state.running.items())
    is_input_error = words is not None and words.is_input_error
    if is_input_error or state.num_restarts >= state.max_restarts:
        tries = "" if is_input_error else f"; all ranks were started {state.num_restarts + 1} times"
        end = End(is_failed=True, error=reason + tries, is_input_error=is_input_error)
        return ScriptDecision(
            state=replace(state, is_over=True), actions=(*kills, end), reason=reason + tries
        )
    number = state.num_restarts + 1
    restarting = replace(state, is_restarting=True, num_restarts=number)
    decision = _after_last(restarting, event.incarnation)
    return replace(
        decision,
        actions=(*kills, *decision.actions),
        reason=f"{reason}; all ranks are started again, time {number} of {state.max_restarts}",
    )


def _after_last(state: ScriptState, incarnation: int) -> ScriptDecision:
    """What follows when nobody runs any more."""
    if state.running:
        return ScriptDecision(state=state)
    if state.is_restarting and not state.is_stopping:
        spawns = tuple(Spawn(rank=rank, incarnation=incarnation + 1) for rank in range(state.devices))
        return ScriptDecision(state=replace(state, is_restarting=False), actions=spawns)
    return ScriptDecision(
        state=replace(state, is_over=True), actions=(End(is_failed=False),), reason="every rank has ended"
    )
