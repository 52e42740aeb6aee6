"""Who is in the run now, and what happens when somebody comes, goes, hangs or stops.

One pure function, ``decide``: state and event in, next state, actions and a reason out. The agent carries the
actions out with real processes; tests and the simulator drive the same function with values.

The life of an epoch: everybody parks, the agent forms an epoch (Form), the ranks train; a death, a broken
collective, a newcomer or a hang ends it (Fence), everybody alive parks again. Start-up is the same path with
nothing lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from trimtab.plan.shares import assign_shares, keep_only, take_over
from trimtab.policy.budgets import Loss, LossKind, over_budget
from trimtab.policy.events import (
    Abandoned,
    Action,
    Cause,
    CoordinatorBack,
    Declare,
    End,
    Event,
    Exited,
    Fault,
    HostJoined,
    HostLost,
    Kill,
    Received,
    ResizeAsked,
    Spawn,
    Spawned,
    StopAsked,
    Stopped,
    Tell,
    Tick,
)
from trimtab.policy.members import BrokenCollective, Decision, Member, Standing, State
from trimtab.policy.overdue import doing, overdue, stalled
from trimtab.policy.wire import (
    Accused,
    Admit,
    Beat,
    Committed,
    Dismiss,
    Failed,
    Fence,
    Finished,
    Form,
    Hello,
    Parked,
    Stop,
    Trouble,
)
from trimtab.terms import OnLoss, Phase

_V = TypeVar("_V")


def decide(state: State, event: Event, *, now_s: float, now_ns: int) -> Decision:
    """What should be done now.

    ``now_s`` and ``now_ns`` are one reading of the agent's monotonic clock. Never raises; an event about a process
    that is no longer a member changes nothing.
    """
    if state.is_over:
        return Decision(state=state)
    match event:
        case Spawned():
            return _spawned(state, event, now_s)
        case Received():
            return _received(state, event, now_s)
        case Exited():
            return _exited(state, event, now_s, now_ns)
        case Stopped():
            return _stopped(state, event)
        case StopAsked():
            return _stop_asked(state, now_s)
        case ResizeAsked():
            return _resize_asked(state, event)
        case Tick():
            return _tick(state, now_s, now_ns)
        case HostJoined():
            return _host_joined(state, event, now_s)
        case HostLost():
            return _host_lost(state, event, now_s, now_ns)
        case Abandoned():
            return _give_up(state, event.error)
        case CoordinatorBack():
            return Decision(state=_without_silence(state, now_s))


def _spawned(state: State, event: Spawned, now_s: float) -> Decision:
    member = Member(
        rank=event.rank,
        incarnation=event.incarnation,
        spawned_at_s=now_s,
        heard_at_s=now_s,
        moved_at_s=now_s,
    )
    incarnations = {**state.incarnations, event.rank: event.incarnation}
    return Decision(state=replace(state.having(member), incarnations=incarnations))


def _stopped(state: State, event: Stopped) -> Decision:
    """It may be continued: only its silence makes it a loss."""
    member = state.members.get(event.rank)
    if member is None or member.incarnation != event.incarnation:
        return Decision(state=state)
    return Decision(state=state.having(replace(member, is_stopped=True)))


def _received(state: State, event: Received, now_s: float) -> Decision:
    member = state.members.get(event.rank)
    if member is None or member.incarnation != event.incarnation:
        stale = Tell(rank=event.rank, message=Dismiss(reason="this process is no longer a member of the run"))
        return Decision(state=state, actions=(stale,) if isinstance(event.message, Hello) else ())
    member = replace(member, heard_at_s=now_s, is_stopped=False)
    match event.message:
        case Hello():
            return Decision(state=state.having(replace(member, is_connected=True)))
        case Beat() as beat:
            return Decision(state=state.having(_after_beat(member, beat, now_s)))
        case Committed() as commit:
            state = state.having(
                replace(member, step=commit.step + 1, moved_at_s=now_s, stepping_since_s=now_s)
            )
            if commit.epoch != state.epoch or not state.is_formed:
                return Decision(state=state)
            return _let_go(replace(state, hosts=state.hosts.committed()))
        case Parked() as parked:
            return _parked(state.having(member), member, parked, now_s)
        case Trouble() as trouble if trouble.epoch == state.epoch and state.is_formed:
            return Decision(state=_in_trouble(state.having(member), member.rank, trouble, now_s))
        case Accused() as accused if accused.epoch == state.epoch and state.is_formed:
            return _accused(state.having(member), accused)
        case Finished():
            return _finished(state.having(replace(member, standing=Standing.FINISHED, moved_at_s=now_s)))
        case Failed() as failed:
            failures = {**state.failures, member.rank: failed}
            return Decision(state=replace(state.having(member), failures=failures))
        case _:
            return Decision(state=state.having(member))


def _accused(state: State, accused: Accused) -> Decision:
    """All ranks say the same, so the first one is believed; whoever is wrong must not go on."""
    member = state.members.get(accused.rank)
    if member is None or member.is_condemned:
        return Decision(state=state)
    detail = f"computes wrong numbers: {accused.reason}"
    condemned = {**state.condemned, member.rank: (Cause.CORRUPT, detail)}
    state = replace(state.having(replace(member, is_condemned=True)), condemned=condemned)
    kill = Kill(rank=member.rank, incarnation=member.incarnation)
    return Decision(state=state, actions=(kill,), reason=f"rank {member.rank} {detail}")


def _in_trouble(state: State, rank: int, trouble: Trouble, now_s: float) -> State:
    if state.trouble is not None:
        return state
    broken = BrokenCollective(rank=rank, error=trouble.error, t_ns=trouble.t_ns, since_s=now_s)
    return replace(state, trouble=broken)


def _after_beat(member: Member, beat: Beat, now_s: float) -> Member:
    moved = beat.progress != member.progress
    return replace(
        member,
        progress=beat.progress,
        phase=beat.phase,
        operation=beat.operation,
        is_waiting=beat.waiting,
        step=beat.step,
        moved_at_s=now_s if moved else member.moved_at_s,
        stepping_since_s=member.stepping_since_s if beat.phase in _IN_STEP else now_s,
    )


_IN_STEP = (Phase.COMPUTE, Phase.REDUCE, Phase.GATHER, Phase.APPLY)


def _parked(state: State, member: Member, parked: Parked, now_s: float) -> Decision:
    if member.standing is not Standing.STARTING and parked.left_epoch != state.epoch:
        return Decision(state=state)
    newcomer = member.standing is Standing.STARTING
    member = replace(
        member,
        standing=Standing.PARKED,
        committed=parked.committed,
        step=parked.committed,
        held=parked.held,
        store_port=parked.store_port,
        store_host=parked.store_host,
        moved_at_s=now_s,
    )
    state = state.having(member)
    if newcomer and state.is_formed:
        if len(_seats(state, _could_train(state))) <= len(state.roster):
            return Decision(state=state, reason=f"rank {member.rank} is ready and waits as a spare")
        actions = state.tell_all(Admit(), standing=Standing.TRAINING)
        return Decision(
            state=replace(state, is_admitting=True),
            actions=actions,
            reason=f"rank {member.rank} is ready and joins at the next step border",
        )
    if state.is_formed:  # a step border that all agreed on
        state = replace(state, is_formed=False, fenced_at_s=now_s)
        border = Fence(epoch=state.epoch, fault_ns=parked.t_ns, reason="the others stand at a step border")
        spares = [m.rank for m in state.members.values() if _is_spare(state, m)]
        told = tuple(Tell(rank=rank, message=border) for rank in spares)
        return _form_if_complete(Decision(state=state, actions=told), now_s)
    return _form_if_complete(Decision(state=state), now_s)


def _is_spare(state: State, member: Member) -> bool:
    """Whether a member of the epoch has no part in its steps."""
    return member.standing is Standing.TRAINING and member.rank not in state.roster


def _could_train(state: State) -> list[int]:
    """Ranks that have state, or could be given it."""
    return [m.rank for m in state.members.values() if m.standing is not Standing.STARTING]


def _seats(state: State, ranks: Sequence[int]) -> tuple[int, ...]:
    return state.seating.seat(ranks, state.roster)


def _form_if_complete(decision: Decision, now_s: float) -> Decision:
    """Form the next epoch as soon as everybody who lives, and was not started after the last one, has parked.

    Who is being killed is awaited as well: its end, which is near, would break the new epoch at once.
    """
    state = decision.state
    if state.is_formed or not state.members:
        return decision
    ready = [m for m in state.members.values() if m.standing is Standing.PARKED and not m.is_condemned]
    awaited = [m for m in state.members.values() if m not in ready]
    if state.epoch > 0 and ready:
        awaited = [m for m in awaited if m.standing is not Standing.STARTING]
    active = _seats(state, [m.rank for m in ready])
    if awaited or not active or not _may_form(state):
        return decision
    form = _form(state, ready, active)
    members = {
        **state.members,
        **{m.rank: _trains(m, form.step, now_s) for m in ready},
    }
    state = replace(
        state,
        epoch=form.epoch,
        is_formed=True,
        members=members,
        is_admitting=False,
        roster=form.active,
        hosts=state.hosts.formed(),
    )
    actions: tuple[Action, ...] = tuple(Tell(rank=rank, message=form) for rank in form.members)
    if state.is_stopping:
        actions += tuple(Tell(rank=rank, message=Stop()) for rank in form.members)
    reason = f"epoch {form.epoch}: ranks {', '.join(map(str, form.active))} go on with step {form.step}"
    spares = [rank for rank in form.members if rank not in form.active]
    if spares:
        reason += f", {', '.join(map(str, spares))} stand by"
    reasons = [text for text in (decision.reason, reason) if text]
    return Decision(state=state, actions=decision.actions + actions, reason="; ".join(reasons))


def _trains(member: Member, step: int, now_s: float) -> Member:
    """It may have waited for long to be formed: what it does now is timed from now on, and is of this step."""
    return replace(
        member,
        standing=Standing.TRAINING,
        step=step,
        is_waiting=False,
        moved_at_s=now_s,
        stepping_since_s=now_s,
    )


def _may_form(state: State) -> bool:
    """Whether enough hosts are there: all of them at first, then a quorum."""
    return state.hosts.has_quorum and (state.epoch > 0 or not state.hosts.missing)


def _form(state: State, ready: list[Member], active: tuple[int, ...]) -> Form:
    ranks = tuple(sorted(m.rank for m in ready))
    step = max(m.committed for m in ready)
    ahead = [m for m in ready if m.committed == step]
    source = min(m.rank for m in ahead)
    held = {m.rank: m.held for m in ahead}
    if state.num_shares == 0 or state.on_loss in (OnLoss.REDO, OnLoss.SAME_BATCH) or not any(held.values()):
        owners = assign_shares(state.num_shares, active) if state.num_shares else ()
    elif state.on_loss is OnLoss.RESCALE:
        owners = keep_only(state.num_shares, active, held)
    else:
        owners = take_over(state.num_shares, active, held)
    leader = state.members[ranks[0]]
    return Form(
        epoch=state.epoch + 1,
        members=ranks,
        active=active,
        store_host=leader.store_host,
        store_port=leader.store_port,
        step=step,
        source=source,
        is_healing=len(ahead) < len(ready),
        owners=owners,
        is_last=state.is_hurried,
    )


def _fence(state: State, now_s: float, *, fault_ns: int, reason: str) -> Decision:
    standings = (Standing.TRAINING, Standing.FINISHED)
    actions = tuple(
        Tell(rank=m.rank, message=Fence(epoch=state.epoch, fault_ns=fault_ns, reason=reason))
        for m in state.members.values()
        if m.standing in standings
    )
    members = {
        rank: replace(m, standing=Standing.TRAINING) if m.standing is Standing.FINISHED else m
        for rank, m in state.members.items()
    }
    state = replace(state, is_formed=False, fenced_at_s=now_s, members=members, trouble=None)
    return Decision(state=state, actions=actions, reason=reason)


def _exited(state: State, event: Exited, now_s: float, now_ns: int) -> Decision:
    member = state.members.get(event.rank)
    if member is None or member.incarnation != event.incarnation:
        return Decision(state=state)
    members = {rank: m for rank, m in state.members.items() if rank != event.rank}
    state = replace(state, members=members)
    if event.rank in state.leaving:
        state = replace(state, leaving=state.leaving - {event.rank})
        most = state.seating.most
        is_wanted_again = most is not None and event.rank < most and len(state.members) < most
        spawn = (Spawn(rank=event.rank, incarnation=event.incarnation + 1),) if is_wanted_again else ()
        return Decision(state=state, actions=spawn, reason=f"rank {event.rank} has left")
    if event.is_clean and member.standing is Standing.FINISHED:
        return _finished(state)
    failed = state.failures.get(event.rank)
    if failed is not None and failed.is_input_error:
        return _give_up(state, f"rank {event.rank} failed: {failed.error}", is_input_error=True)
    ended_as = Cause.PREEMPTED if event.how in _NOTICES else Cause.EXITED
    cause, detail = state.condemned.get(event.rank, (ended_as, event.how))
    if failed is not None:
        cause, detail = Cause.USER_ERROR, failed.error
    state = replace(
        state, condemned=_without(state.condemned, event.rank), failures=_without(state.failures, event.rank)
    )
    fault = Fault(
        rank=event.rank,
        incarnation=event.incarnation,
        cause=cause,
        detail=detail,
        step=member.step,
        fault_ns=event.fault_ns,
        declared_ns=now_ns,
    )
    return _after_loss(state, member, fault, now_s)


_NOTICES = ("signal SIGTERM", "signal SIGUSR1")
"""How a process ends that was told to, before it could hear it: schedulers send these, and nobody else does."""


def _without(found: Mapping[int, _V], rank: int) -> dict[int, _V]:
    return {each: value for each, value in found.items() if each != rank}


def _after_loss(state: State, member: Member, fault: Fault, now_s: float) -> Decision:
    is_users = fault.cause is Cause.USER_ERROR
    kinds = {
        Cause.USER_ERROR: LossKind.USER_ERROR,
        Cause.PREEMPTED: LossKind.PREEMPTION,
        Cause.HOST_LEFT: LossKind.PREEMPTION,
    }
    loss = Loss(
        kind=kinds.get(fault.cause, LossKind.NODE_LOSS),
        step=fault.step,
        epoch=state.epoch,
        committed=fault.step,
    )
    state = replace(state, losses=(*state.losses, loss))
    reason = f"rank {fault.rank} {_what_happened(fault)}"
    verdict = over_budget(state.losses, state.limits.budget)
    if verdict:
        # Who bears no error of the program wants to read the error, and nothing of budgets.
        is_plain = is_users and state.limits.budget.user_errors == 0
        decision = _give_up(state, reason if is_plain else f"{reason}; {verdict}")
        return replace(decision, actions=(Declare(fault=fault), *decision.actions))
    spawn: tuple[Action, ...] = ()
    is_missed = len(state.members) < state.seating.fewest()
    is_awaited = state.is_replacing or is_users or is_missed or member.standing is Standing.STARTING
    if is_awaited and state.hosts.is_reachable(fault.rank):
        spawn = (Spawn(rank=fault.rank, incarnation=fault.incarnation + 1),)
    was_inside = member.standing in (Standing.TRAINING, Standing.FINISHED)
    if state.is_formed and was_inside:
        fenced = _fence(state, now_s, fault_ns=fault.fault_ns, reason=reason)
        decision = replace(fenced, actions=(Declare(fault=fault), *fenced.actions))
    else:
        decision = Decision(state=state, actions=(Declare(fault=fault),), reason=reason)
    decision = replace(decision, actions=decision.actions + spawn)
    if member.standing is Standing.STARTING and state.epoch == 0:
        return decision  # its replacement is awaited
    return _form_if_complete(decision, now_s)


def _what_happened(fault: Fault) -> str:
    if fault.cause is Cause.USER_ERROR:
        return f"failed: {fault.detail}"
    return f"is lost ({fault.detail}) in step {fault.step}"


def _host_joined(state: State, event: HostJoined, now_s: float) -> Decision:
    """A host answers: if it was away, its ranks begin anew; whatever still runs there is no member any more."""
    running = dict(event.running)
    if event.host in state.hosts.reachable:  # only its link, or the coordinator, was away
        heard = {
            rank: replace(m, heard_at_s=now_s, moved_at_s=now_s)
            for rank, m in state.members.items()
            if running.get(rank) == m.incarnation
        }
        return Decision(state=replace(state, members={**state.members, **heard}))
    state = replace(state, hosts=state.hosts.joined(event.host))
    actions: list[Action] = []
    for rank in state.hosts.ranks(event.host):
        newest = state.incarnations.get(rank, -1)
        if rank in running and running[rank] > newest:
            continue  # its start will be reported
        if rank in running:
            actions.append(Kill(rank=rank, incarnation=running[rank]))
        actions.append(Spawn(rank=rank, incarnation=newest + 1))
    reason = f"host {event.host} at {event.address} joins" if len(set(state.hosts.placement)) > 1 else ""
    return _form_if_complete(Decision(state=state, actions=tuple(actions), reason=reason), now_s)


def _without_silence(state: State, now_s: float) -> State:
    """All deadlines begin anew: nobody was listening."""
    members = {
        rank: replace(m, spawned_at_s=now_s, heard_at_s=now_s, moved_at_s=now_s, stepping_since_s=now_s)
        for rank, m in state.members.items()
    }
    trouble = None if state.trouble is None else replace(state.trouble, since_s=now_s)
    hosts = state.hosts
    if hosts.apart_since_s is not None:
        hosts = replace(hosts, apart_since_s=now_s)
    return replace(state, members=members, fenced_at_s=now_s, trouble=trouble, hosts=hosts)


def _host_lost(state: State, event: HostLost, now_s: float, now_ns: int) -> Decision:
    """All ranks of a host are lost at once, in whatever they were doing."""
    if event.host not in state.hosts.reachable:
        return Decision(state=state)
    cause = Cause.HOST_LEFT if event.is_leaving else Cause.HOST_LOST
    lost = [state.members[rank] for rank in state.hosts.ranks(event.host) if rank in state.members]
    condemned = {m.rank: (cause, f"host {event.host} {event.reason}") for m in lost}
    hosts = state.hosts.lost(event.host, now_s)
    state = replace(state, hosts=hosts, condemned={**state.condemned, **condemned})
    decision = Decision(
        state=state, reason="; ".join(filter(None, (f"host {event.host} {event.reason}", hosts.lacks())))
    )
    for member in lost:
        exited = Exited(
            rank=member.rank,
            incarnation=member.incarnation,
            how=event.reason,
            is_clean=False,
            fault_ns=event.fault_ns,
        )
        then = _exited(decision.state, exited, now_s, now_ns)
        decision = Decision(
            state=then.state,
            actions=decision.actions + then.actions,
            reason="; ".join(filter(None, (decision.reason, then.reason))),
        )
        if then.state.is_over:
            break
    return decision


def _finished(state: State) -> Decision:
    if any(m.standing is not Standing.FINISHED for m in state.members.values() if m.rank in state.roster):
        return Decision(state=state)
    actions: tuple[Action, ...] = tuple(
        Tell(rank=rank, message=Dismiss(reason="the run is complete")) for rank in state.members
    )
    over = replace(state, is_over=True)
    return Decision(state=over, actions=(*actions, End(is_failed=False)), reason="every rank has finished")


def _give_up(state: State, error: str, *, is_input_error: bool = False, is_cut_off: bool = False) -> Decision:
    kills = tuple(Kill(rank=m.rank, incarnation=m.incarnation) for m in state.members.values())
    over = replace(state, is_over=True)
    return Decision(
        state=over,
        actions=(
            *kills,
            End(is_failed=True, error=error, is_input_error=is_input_error, is_cut_off=is_cut_off),
        ),
        reason=error,
    )


def _stop_asked(state: State, now_s: float) -> Decision:
    actions = state.tell_all(Stop(), standing=Standing.TRAINING)
    return Decision(
        state=replace(state, stop_asked_s=now_s),
        actions=actions,
        reason="asked to stop: the ranks agree on a step border",
    )


def _hurry(state: State, now_s: float) -> Decision | None:
    """Half of the grace is over: give up what would use up the rest; None if there is no need, or it was done.

    A step that began before the wish to stop and has not ended is left, and all finish with the state of the last one that
    did. Before the first epoch there is nothing to save.
    """
    asked_s = state.stop_asked_s
    if asked_s is None or state.is_hurried or now_s - asked_s <= state.limits.stop_s:
        return None
    if state.epoch == 0:
        kills = tuple(Kill(rank=m.rank, incarnation=m.incarnation) for m in state.members.values())
        reason = "asked to stop before the first step: there is nothing to save"
        over = replace(state, is_over=True)
        return Decision(state=over, actions=(*kills, End(is_failed=False, is_stopped=True)), reason=reason)
    state = replace(state, is_hurried=True)
    inside = [m for m in state.members.values() if m.standing is Standing.TRAINING and m.rank in state.roster]
    if not state.is_formed or not inside or any(m.stepping_since_s > asked_s for m in inside):
        return Decision(state=state)
    reason = f"step {inside[0].step} takes longer than the grace allows: it is given up, and what was finished is saved"
    return _fence(state, now_s, fault_ns=round(now_s * 1e9), reason=reason)


def _resize_asked(state: State, event: ResizeAsked) -> Decision:
    """More devices: their processes start now and join when they are ready. Fewer: all meet at the next step border.

    A number that the layouts do not have is the next smaller one that they have.
    """
    if state.seating.num_seats(event.devices) == 0:
        return Decision(
            state=state, reason=f"the layout needs more than {event.devices} devices: nothing changes"
        )
    state = replace(state, seating=replace(state.seating, most=event.devices))
    missing = event.devices - len(state.members)
    free = [rank for rank in range(event.devices) if rank not in state.members]
    actions: tuple[Action, ...] = tuple(
        Spawn(rank=rank, incarnation=state.incarnations.get(rank, -1) + 1) for rank in free[: max(missing, 0)]
    )
    if len(_seats(state, _could_train(state))) != len(state.roster):
        state = replace(state, is_admitting=True)
        actions += state.tell_all(Admit(), standing=Standing.TRAINING)
    reason = f"asked to go on with {event.devices} devices"
    return Decision(state=state, actions=actions, reason=reason)


def _let_go(state: State) -> Decision:
    """Those that the run is to do without may go when the others have taken a step: nothing of theirs is needed then."""
    most = state.seating.most
    spare = [m.rank for m in state.members.values() if _is_spare(state, m) and m.rank not in state.leaving]
    surplus = 0 if most is None else len(state.members) - len(state.leaving) - most
    going = sorted(spare, reverse=True)[: max(surplus, 0)]
    if not going:
        return Decision(state=state)
    actions = tuple(
        Tell(rank=rank, message=Dismiss(reason="the run goes on with fewer devices")) for rank in going
    )
    return Decision(state=replace(state, leaving=state.leaving | {*going}), actions=actions)


def _tick(state: State, now_s: float, now_ns: int) -> Decision:
    if (hurried := _hurry(state, now_s)) is not None:
        return hurried
    hosts = state.hosts
    if hosts.apart_since_s is None and state.epoch == 0 and hosts.missing:
        state = replace(state, hosts=replace(hosts, apart_since_s=now_s))
    elif _is_apart_too_long(state, now_s):
        missing = ", ".join(map(str, hosts.missing))
        why = hosts.lacks() or "their ranks are needed"
        error = f"host {missing} could not be reached for {hosts.patience_s:g} s: {why}"
        return _give_up(state, error, is_cut_off=True)
    actions: list[Action] = []
    reasons: list[str] = []
    for member in state.members.values():
        verdict = None if member.is_condemned else overdue(state, member, now_s)
        if verdict is None:
            continue
        cause, detail = verdict
        condemned = {**state.condemned, member.rank: (cause, detail)}
        state = replace(state.having(replace(member, is_condemned=True)), condemned=condemned)
        actions.append(Kill(rank=member.rank, incarnation=member.incarnation))
        reasons.append(f"rank {member.rank}: {detail}")
    trouble = state.trouble
    if trouble is not None and not actions and now_s - trouble.since_s > state.limits.trouble_s:
        reason = f"rank {trouble.rank} lost its peers, and all of them live: {trouble.error}"
        return _fence(state, now_s, fault_ns=trouble.t_ns, reason=reason)
    if not actions and trouble is None and (waiting := stalled(state, now_s)):
        return _leave_stalled(state, waiting, now_s, now_ns)
    return Decision(state=state, actions=tuple(actions), reason="; ".join(reasons))


def _leave_stalled(state: State, waiting: list[Member], now_s: float, now_ns: int) -> Decision:
    """Nobody is to blame, so nobody is killed: all leave the epoch and form the next one."""
    first = min(waiting, key=lambda member: member.rank)
    waited_s = now_s - max(member.moved_at_s for member in waiting)
    reason = f"every rank waits, for {waited_s:.1f} s: {'; '.join(doing(member) for member in waiting)}"
    loss = Loss(kind=LossKind.NODE_LOSS, step=first.step, epoch=state.epoch, committed=first.step)
    state = replace(state, losses=(*state.losses, loss))
    if verdict := over_budget(state.losses, state.limits.budget):
        return _give_up(state, f"{reason}; {verdict}")
    return _fence(state, now_s, fault_ns=now_ns - round(waited_s * 1e9), reason=reason)


def _is_apart_too_long(state: State, now_s: float) -> bool:
    """Whether no epoch can be formed for want of hosts, and that was waited for."""
    hosts = state.hosts
    if state.is_formed or hosts.apart_since_s is None or now_s - hosts.apart_since_s <= hosts.patience_s:
        return False
    num_parked = sum(m.standing is Standing.PARKED for m in state.members.values())
    return not _may_form(state) or state.seating.num_seats(num_parked) == 0
