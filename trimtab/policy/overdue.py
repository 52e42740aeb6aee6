"""Who has been silent, or has stood still, for too long?

Every limit is in seconds on the agent's clock; see ``Limits``.
"""

from trimtab.policy.events import Cause
from trimtab.policy.members import Member, Standing, State


def overdue(state: State, member: Member, now_s: float) -> tuple[Cause, str] | None:
    """Why a rank counts as lost, and what it was doing; None if it is in time."""
    limits = state.limits
    silent_s = now_s - member.heard_at_s
    still_s = now_s - member.moved_at_s
    if member.standing is Standing.STARTING and not member.is_connected:
        if now_s - member.spawned_at_s > limits.start_s:
            return Cause.START_TIMEOUT, f"did not report within {limits.start_s:g} s of its start"
        return None
    where = f"in phase {member.phase} of step {member.step}"
    last = f"; its last collective: {member.operation}" if member.operation else ""
    if silent_s > limits.heartbeat_s:
        what = "stopped, " if member.is_stopped else ""
        cause = Cause.STOPPED if member.is_stopped else Cause.SILENT
        return cause, f"{what}no sign of life for {silent_s:.1f} s {where}{last}"
    if member.standing is Standing.TRAINING and not state.is_formed:
        parked_late_s = now_s - max(state.fenced_at_s, member.moved_at_s)
        if parked_late_s > limits.park_s:
            return Cause.NOT_PARKED, f"did not leave epoch {state.epoch} within {limits.park_s:g} s{last}"
        return None
    if member.standing not in (Standing.TRAINING, Standing.STARTING):
        return None
    is_still = still_s > limits.progress_in(member.phase)
    if is_still and not member.is_waiting:
        return Cause.STUCK, f"alive but without progress for {still_s:.1f} s {where}{last}"
    # Who really waits does not move.
    is_busy = not is_still or not member.is_waiting
    stepping_s = now_s - member.stepping_since_s
    if member.standing is Standing.TRAINING and is_busy and stepping_s > limits.step_s:
        return Cause.LIVELOCK, f"busy for {stepping_s:.1f} s {where}, which it does not finish{last}"
    return None


def stalled(state: State, now_s: float) -> list[Member]:
    """The ranks of an epoch in which everybody waits for everybody, and has for long; none if there is one that works."""
    inside = [m for m in state.members.values() if m.standing is Standing.TRAINING and m.rank in state.roster]
    limit_s = state.limits.progress_s
    is_stalled = state.is_formed and all(m.is_waiting and now_s - m.moved_at_s > limit_s for m in inside)
    return inside if is_stalled else []


def doing(member: Member) -> str:
    """Where a rank is, and what it waited for last."""
    if member.is_waiting and member.operation:
        return f"rank {member.rank} in {member.operation}"
    last = f", after {member.operation}" if member.operation else ""
    return f"rank {member.rank} in phase {member.phase} of step {member.step}{last}"
