"""Ranks as values: what a process of a run does with what it is told, and says, in any order and at any pace.

A model of the other side of the wire, for tests of ``policy.membership``: it holds no tensors, but it keeps to the
protocol (``policy.wire``). A step is complete when every member of the epoch took part; each member then commits it for
itself, so that a commit can be ragged, as with a real collective.
"""

from collections import deque
from dataclasses import dataclass, field

from trimtab.plan.shares import assign_shares
from trimtab.policy import wire
from trimtab.terms import Phase


@dataclass(kw_only=True)
class Process:
    """One process of one rank.

    Args:
        committed: Steps that its state has.
        said: Messages on their way to the agent.
        heard: Messages on their way to it.
        epoch: That it is in; None while it starts, is parked, or is gone.
        is_frozen: Stopped, like by SIGSTOP: says and does nothing.
        is_stuck: Its main thread stands still though it waits for nobody.
        is_deaf: It trains on, but never leaves an epoch when told to.
        is_troubled: Its collective broke; it waits to be fenced.
    """

    rank: int
    incarnation: int
    committed: int = 0
    said: "deque[wire.Message]" = field(default_factory=deque)
    heard: "deque[wire.Message]" = field(default_factory=deque)
    is_connected: bool = False
    has_parked: bool = False
    epoch: int | None = None
    held: set[int] = field(default_factory=set)
    progress: int = 0
    is_frozen: bool = False
    is_stuck: bool = False
    is_deaf: bool = False
    is_troubled: bool = False
    is_finished: bool = False
    is_dead: bool = False
    is_clean: bool = False

    @property
    def acts(self) -> bool:
        """Whether its main thread runs."""
        return not (self.is_dead or self.is_frozen or self.is_stuck)

    def connect(self) -> None:
        """The first message of its connection."""
        self.is_connected = True
        self.said.append(
            wire.Hello(rank=self.rank, incarnation=self.incarnation, pid=1, proof="", fingerprint={})
        )

    def park(self, *, left: int) -> None:
        """Leave an epoch, and offer what it has."""
        self.epoch, self.is_troubled, self.is_finished, self.has_parked = None, False, False, True
        self.said.append(
            wire.Parked(
                left_epoch=left,
                committed=self.committed,
                held=tuple(sorted(self.held)),
                store_port=7000 + self.rank,
                t_ns=0,
            )
        )

    def beat(self, *, waiting: bool) -> wire.Beat:
        """A sign of life."""
        if not (waiting or self.is_stuck):
            self.progress += 1
        return wire.Beat(
            step=self.committed,
            phase=Phase.COMPUTE,
            progress=self.progress,
            waiting=waiting and not self.is_stuck,
            t_ns=0,
        )

    def finish(self, *, is_stopped: bool) -> None:
        """Nothing is left to do."""
        self.is_finished = True
        self.said.append(wire.Finished(step=self.committed, is_stopped=is_stopped, results={}))


@dataclass(kw_only=True)
class Group:
    """The ranks of one epoch, as they see it.

    Args:
        form: That they were told.
        complete: Steps to which every member has given its part.
        wants_border: A newcomer waits.
        wants_stop: The run shall end.
        parks_at: Steps at which all agreed to park.
        ends_at: Steps at which all agreed to finish.
    """

    form: wire.Form
    complete: int
    wants_border: bool = False
    wants_stop: bool = False
    parks_at: int | None = None
    ends_at: int | None = None


def active_in(form: wire.Form) -> tuple[int, ...]:
    """The members of an epoch that take part in its steps; any other waits inside it."""
    return form.active


class Fleet:
    """All processes that there ever were, and what the network between them allows.

    Args:
        num_steps: Of the run.
        num_shares: Of a batch; 0 for none.
    """

    def __init__(self, *, num_steps: int, num_shares: int) -> None:
        self.num_steps, self.num_shares = num_steps, num_shares
        self.processes: list[Process] = []
        self.groups: dict[int, Group] = {}
        self.saved = 0

    def spawn(self, rank: int, incarnation: int) -> Process:
        """A new process begins with the newest checkpoint."""
        process = Process(rank=rank, incarnation=incarnation, committed=self.saved)
        self.processes.append(process)
        return process

    @property
    def living(self) -> list[Process]:
        """Those that are not gone."""
        return [process for process in self.processes if not process.is_dead]

    def current(self, rank: int) -> Process | None:
        """The newest process of a rank."""
        return next((process for process in reversed(self.processes) if process.rank == rank), None)

    def members(self, group: Group) -> list[Process]:
        """The processes that are in a group's epoch now."""
        return [process for process in self.living if process.epoch == group.form.epoch]

    def hear(self, process: Process) -> None:
        """Let a process act on the next message to it."""
        match process.heard.popleft():
            case wire.Fence() as fence if fence.epoch == process.epoch:
                if not process.is_deaf:
                    process.park(left=fence.epoch)
            case wire.Form() as form:
                self._enter(process, form)
            case wire.Admit() if process.epoch is not None:
                self.groups[process.epoch].wants_border = True
            case wire.Stop() if process.epoch is not None:
                self.groups[process.epoch].wants_stop = True
            case wire.Dismiss():
                process.is_dead = process.is_clean = True
            case _:
                pass

    def _enter(self, process: Process, form: wire.Form) -> None:
        group = self.groups.setdefault(form.epoch, Group(form=form, complete=form.step))
        process.epoch = form.epoch
        if process.committed != form.step:
            process.committed = form.step
            process.held.clear()
        if process.committed >= self.num_steps and process.rank in active_in(form):
            group.ends_at = process.committed
            process.finish(is_stopped=False)

    def can_complete(self, group: Group) -> bool:
        """Whether everybody who takes part is there to give its part of the next step."""
        active = set(active_in(group.form))
        members = [process for process in self.members(group) if process.rank in active]
        return (
            {process.rank for process in members} == active
            and all(process.acts and not process.is_troubled for process in members)
            and all(process.committed == group.complete for process in members)
            and group.parks_at is None
            and group.ends_at is None
        )

    def complete(self, group: Group) -> None:
        """The step's sum is whole; what all agree on at its border is decided with it."""
        group.complete += 1
        if group.wants_stop or group.complete >= self.num_steps:
            group.ends_at = group.complete
        elif group.wants_border:
            group.parks_at = group.complete

    def compute(self, process: Process) -> None:
        """Compute the next of its own shares, and keep its gradient."""
        own = self._own_shares(process)
        missing = [share for share in own if share not in process.held]
        process.held |= set(missing[:1])

    def _own_shares(self, process: Process) -> list[int]:
        if process.epoch is None or not self.num_shares:
            return []
        form = self.groups[process.epoch].form
        owners = (
            form.owners if process.committed == form.step else assign_shares(self.num_shares, form.members)
        )
        return [share for share, owner in enumerate(owners) if owner == process.rank]

    def can_commit(self, process: Process) -> bool:
        """Whether a step is complete that it has not applied."""
        if process.epoch is None or not process.acts or process.is_troubled:
            return False
        group = self.groups[process.epoch]
        return process.rank in active_in(group.form) and process.committed < group.complete

    def commit(self, process: Process) -> None:
        """Apply a complete step, say so, and do what was agreed for its border."""
        assert process.epoch is not None
        group = self.groups[process.epoch]
        process.committed += 1
        process.held.clear()
        process.said.append(wire.Committed(epoch=process.epoch, step=process.committed - 1, t_ns=0))
        if process.committed == group.ends_at:
            process.finish(is_stopped=process.committed < self.num_steps)
        elif process.committed == group.parks_at:
            process.park(left=process.epoch)

    def is_waiting(self, process: Process) -> bool:
        """Whether its main thread waits for others: parked, finished, or in a step that somebody is missing from."""
        if process.epoch is None:
            return process.has_parked
        group = self.groups[process.epoch]
        return (
            process.is_finished
            or process.is_troubled
            or not (self.can_complete(group) or self.can_commit(process))
        )

    def feels_a_loss(self, process: Process) -> bool:
        """Whether a peer of its epoch is gone from it, so that its collective breaks."""
        if process.epoch is None or process.is_finished or process.is_troubled or not process.acts:
            return False
        group = self.groups[process.epoch]
        there = {peer.rank for peer in self.members(group)}
        return process.committed == group.complete and not there >= {*active_in(group.form), process.rank}
