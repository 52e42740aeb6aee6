"""Whoever decides for a run, as values: what agents report comes in, orders to agents and lines for the journal go out.

Everything that it knows follows from the lines that it wrote: a coordinator that was killed reads them, and comes to
the same state, the same epoch and the same numbered orders, by the same ``decide``. A line holds what happened and
what was ordered then, and is written before any order leaves.

Signs of life and commits come many times a second, and no order follows from them alone. They are written only before
a line that something does follow from, and of each rank no more than tell the same: what it does, and since when.
"""

import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trimtab.ledger import EventKind
from trimtab.policy import events, wire
from trimtab.policy.codec import from_json, kinds_of, to_json
from trimtab.policy.members import State
from trimtab.policy.membership import decide

DECIDED = EventKind.DECIDED.value
"""The kind of line that a coordinator goes on from."""
ITSELF = -1
"""The host of what the coordinator finds out by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conclude:
    """To every host: the run is over. End what still runs, report it, and go.

    Args:
        results: What the ranks said at their end.
        is_stopped: They ended before the last step, for somebody asked.
    """

    is_failed: bool
    error: str | None
    is_input_error: bool
    is_cut_off: bool
    is_stopped: bool
    results: dict[str, Any]


EVENT_KINDS = {**kinds_of(*typing.get_args(events.Event)), **wire.KINDS}
"""What may come back from a journal or a report, by name."""
ORDER_KINDS = {**kinds_of(*typing.get_args(events.Action), Conclude), **wire.KINDS}
"""What an agent may be told to do, by name."""

AgentOrder = events.Tell | events.Kill | events.Spawn | Conclude


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of the journal."""

    kind: str
    t_ns: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """When something was taken, and from whom.

    Args:
        host: Who reported it; ``ITSELF`` for the coordinator.
        number: Of the report.
        now_s, now_ns: One reading of the coordinator's monotonic clock.
    """

    now_s: float
    now_ns: int
    host: int = ITSELF
    number: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What follows from one event.

    Args:
        lines: For the journal, to be written whole before anything else is done.
        shown: What people want to see and no journal needs.
    """

    lines: tuple[Line, ...]
    shown: tuple[Line, ...] = ()


@dataclass(slots=True, kw_only=True)
class Outbox:
    """What one host is to do.

    Attributes:
        name: Of its agent's process.
        reports: Number of the newest report that was taken from it.
        orders: Those that it may not have carried out, with their numbers.
        num_orders: Ever given to this process.
    """

    name: str = ""
    address: str = ""
    reports: int = 0
    orders: list[tuple[int, AgentOrder]] = field(default_factory=list)
    num_orders: int = 0

    def done(self, number: int) -> None:
        """Everything up to this number has been carried out."""
        self.orders = [(each, order) for each, order in self.orders if each > number]


class Coordinator:
    """Takes events, one at a time, or the lines of its own journal.

    Args:
        state: Of the run before anything has happened.
        fingerprint: That the run began with; None before its first rank has told.
    """

    def __init__(self, state: State, *, fingerprint: Mapping[str, str] | None = None) -> None:
        self.state = state
        self.fingerprint = fingerprint
        self.conclusion: Conclude | None = None
        self.outboxes: dict[int, Outbox] = {}
        self.differences: list[str] = []
        self._results: dict[int, wire.Finished] = {}
        self._num_committed = 0
        self._fault: events.Fault | None = None
        self._fenced = -1
        self._unpaid: set[int] = set()
        self._soft: dict[int, list[tuple[events.Received, Moment]]] = {}

    def take(self, event: events.Event, moment: Moment, records: Iterable[Line] = ()) -> Taken:
        """Decide on an event; orders wait in the outboxes.

        Args:
            event: What happened. A report that was taken before changes nothing.
            moment: When it is taken.
            records: Lines that go into the journal with it.
        """
        outbox = self.outboxes.setdefault(moment.host, Outbox())
        if moment.host != ITSELF:
            if moment.number <= outbox.reports:
                return Taken(lines=())
            outbox.reports = moment.number
        if isinstance(event, events.HostJoined):
            self._meet(event)
        hosts = self.state.hosts
        before, shown = self._before(event, moment)
        decision = decide(self.state, event, now_s=moment.now_s, now_ns=moment.now_ns)
        is_as_before, self.state = decision.state is self.state, decision.state
        lines = [*records, *before]
        if decision.reason:
            lines.append(Line(kind="decision", t_ns=moment.now_ns, fields={"reason": decision.reason}))
        orders: list[tuple[int, AgentOrder]] = []
        for action in decision.actions:
            lines += self._lines_of(action, moment)
            orders += self._orders_of(action)
        for host, order in orders:
            self._give(host, order)
        # Time that has gone by may change what comes next, and order nothing yet.
        is_soft = (isinstance(event, events.Tick) and is_as_before) or (
            isinstance(event, events.Received) and isinstance(event.message, wire.Beat | wire.Committed)
        )
        if is_soft and not lines and not orders and self.state.hosts.voters == hosts.voters:
            if isinstance(event, events.Received):
                self._keep_soft(event, moment)
            return Taken(lines=(), shown=shown)
        written = [*self._soft_lines(), *lines, _decided(event, moment, orders)]
        return Taken(lines=tuple(written), shown=shown)

    def replay(self, fields: Mapping[str, Any]) -> None:
        """Take a line of kind ``DECIDED`` again. Where it is decided otherwise than then, what was ordered then holds.

        Raises: CodecError if it is none of this version.
        """
        moment = Moment(
            now_s=fields["now_s"], now_ns=fields["now_ns"], host=fields["host"], number=fields["number"]
        )
        given = {host: outbox.num_orders for host, outbox in self.outboxes.items()}
        self.take(from_json(fields["what"], EVENT_KINDS), moment)
        ordered = [(host, from_json(order, ORDER_KINDS)) for host, order in fields["orders"]]
        again = [
            (host, order)
            for host, outbox in self.outboxes.items()
            for number, order in outbox.orders
            if number > given.get(host, 0)
        ]
        if sorted(again, key=_host) != sorted(ordered, key=_host):
            self.differences.append(f"{fields['what']['is']}: ordered {ordered}, today {again}")
            for host, outbox in self.outboxes.items():
                outbox.orders = [each for each in outbox.orders if each[0] <= given.get(host, 0)]
                outbox.num_orders = given.get(host, 0)
            for host, order in ordered:
                self._give(host, order)

    # What comes in.

    def _meet(self, event: events.HostJoined) -> None:
        """The process behind a host's number: another one starts with empty hands."""
        outbox = self.outboxes.setdefault(event.host, Outbox())
        if outbox.name != event.name:
            self.outboxes[event.host] = Outbox(name=event.name, address=event.address)

    def _before(self, event: events.Event, moment: Moment) -> tuple[list[Line], tuple[Line, ...]]:
        """What is worth a line, or to be shown, whatever is decided on it."""
        if isinstance(event, events.HostLost):
            if event.host not in self.state.hosts.reachable:
                return [], ()
            self.outboxes[event.host].orders.clear()
            return [], ()
        if isinstance(event, events.HostJoined) and event.host not in self.state.hosts.reachable:
            return self._devices(event.host, moment), ()
        if isinstance(event, events.Exited) and event.rank in self.state.leaving:
            self._unpaid.add(event.rank)
            return [Line(kind="released", t_ns=moment.now_ns, fields={"device": event.rank})], ()
        if not isinstance(event, events.Received):
            return [], ()
        message, rank = event.message, event.rank
        match message:
            case wire.Hello():
                told = {"incarnation": message.incarnation, "fingerprint": message.fingerprint}
                return [Line(kind="hello", t_ns=moment.now_ns, fields={"rank": rank, **told})], ()
            case wire.Committed():
                shown = (
                    Line(
                        kind="step",
                        t_ns=message.t_ns,
                        fields={"step": message.step, "rank": rank, **message.metrics},
                    ),
                )
                return self._on_commit(message), shown if message.metrics else ()
            case wire.Note():
                return [
                    Line(kind=message.kind, t_ns=message.t_ns, fields={"rank": rank, **message.fields})
                ], ()
            case wire.Finished():
                self._results[rank] = message
            case wire.Failed():
                told = {"step": message.step, "phase": message.phase.value, "error": message.error}
                return [Line(kind="failed", t_ns=moment.now_ns, fields={"rank": rank, **told})], ()
            case _:
                pass
        return [], ()

    def _devices(self, host: int, moment: Moment) -> list[Line]:
        """The devices of a host are paid for from now on; those of the first are its agent's to tell."""
        ranks = self.state.hosts.ranks(host) if host else ()
        return [Line(kind="allocated", t_ns=moment.now_ns, fields={"device": rank}) for rank in ranks]

    def _on_commit(self, commit: wire.Committed) -> list[Line]:
        self._num_committed = max(self._num_committed, commit.step + 1)
        fault = self._fault
        if fault is None or commit.epoch != self.state.epoch or not self.state.is_formed:
            return []
        self._fault = None
        fields = {
            "step": commit.step,
            "rank": fault.rank,
            "cause": fault.cause.value,
            "detail": fault.detail,
            "detect_s": (fault.declared_ns - fault.fault_ns) / 1e9,
            "resumed_s": (commit.t_ns - fault.fault_ns) / 1e9,
            "steps_lost": max(0, fault.step - commit.step),
        }
        return [Line(kind="recovered", t_ns=commit.t_ns, fields=fields)]

    def mismatch(self, found: Mapping[str, str]) -> str | None:
        """What of a rank's fingerprint differs from the run's, which the first rank of the first attempt sets."""
        if self.fingerprint is None:
            self.fingerprint = dict(found)
        begun = self.fingerprint
        wrong = [
            f"{key} is {found.get(key)!r}, the run began with {begun.get(key)!r}"
            for key in sorted(found.keys() | begun.keys())
            if found.get(key) != begun.get(key)
        ]
        return "; ".join(wrong) or None

    # What goes out.

    def _lines_of(self, action: events.Action, moment: Moment) -> Iterator[Line]:
        match action:
            case events.Declare(fault=fault):
                self._fault = fault
                fields = {
                    "rank": fault.rank,
                    "incarnation": fault.incarnation,
                    "step": fault.step,
                    "cause": fault.cause.value,
                    "detail": fault.detail,
                    "t_fault_ns": fault.fault_ns,
                    "t_declared_ns": fault.declared_ns,
                }
                yield Line(kind="fault", t_ns=moment.now_ns, fields=fields)
            case events.Spawn() if action.rank in self._unpaid:
                self._unpaid.remove(action.rank)
                yield Line(kind="allocated", t_ns=moment.now_ns, fields={"device": action.rank})
            case events.Tell(message=wire.Fence() as fence) if fence.epoch != self._fenced:
                self._fenced = fence.epoch
                fields = {"epoch": fence.epoch, "reason": fence.reason}
                yield Line(kind="fence", t_ns=moment.now_ns, fields=fields)
            case events.Tell(message=wire.Form() as form) if action.rank == form.members[0]:
                yield Line(kind="formed", t_ns=moment.now_ns, fields=asdict(form))
                if form.step < self._num_committed:
                    fields = {"to_step": form.step, "reason": "nobody who lives has a newer state"}
                    yield Line(kind="rollback", t_ns=moment.now_ns, fields=fields)
                self._num_committed = form.step
            case _:
                pass

    def _orders_of(self, action: events.Action) -> list[tuple[int, AgentOrder]]:
        match action:
            case events.Tell() | events.Kill() | events.Spawn():
                host = self.state.hosts.of(action.rank)
                return [(host, action)] if host in self.state.hosts.reachable else []
            case events.End():
                self.conclusion = self._conclude(action)
                return [(host, self.conclusion) for host in sorted(self.state.hosts.reachable)]
            case _:
                return []

    def _give(self, host: int, order: AgentOrder) -> None:
        outbox = self.outboxes.setdefault(host, Outbox())
        outbox.num_orders += 1
        outbox.orders.append((outbox.num_orders, order))

    def _conclude(self, end: events.End) -> Conclude:
        finished = next(iter(self._results.values()), None)
        hashes = {each.results.get("weights_sha256") for each in self._results.values()}
        # Replicas whose weights differ at the end: the guarantee is broken, and that must be loud.
        broken = (
            f"replicas ended with different weights: {sorted(map(str, hashes))}" if len(hashes) > 1 else None
        )
        return Conclude(
            is_failed=end.is_failed or broken is not None,
            error=end.error or broken,
            is_input_error=end.is_input_error,
            is_cut_off=end.is_cut_off,
            is_stopped=end.is_stopped or (finished is not None and finished.is_stopped),
            results=dict(finished.results) if finished is not None else {},
        )

    # What is not written at once.

    def _keep_soft(self, event: events.Received, moment: Moment) -> None:
        """Keep of each rank its newest commit, the first beat of its present progress, and its newest beat."""
        kept = self._soft.setdefault(event.rank, [])
        if isinstance(event.message, wire.Committed):
            kept[:] = [each for each in kept if not isinstance(each[0].message, wire.Committed)]
        elif isinstance(event.message, wire.Beat):
            beats = [each for each in kept if isinstance(each[0].message, wire.Beat)]
            first = beats[0][0].message if beats else None
            is_same = isinstance(first, wire.Beat) and first.progress == event.message.progress
            dropped = beats[1:] if is_same else beats
            kept[:] = [each for each in kept if each not in dropped]
        kept.append((event, moment))

    def _soft_lines(self) -> list[Line]:
        kept = [each for rank in self._soft.values() for each in rank]
        self._soft.clear()
        return [
            _decided(event, moment, []) for event, moment in sorted(kept, key=lambda each: each[1].now_ns)
        ]


def _decided(event: events.Event, moment: Moment, orders: Iterable[tuple[int, AgentOrder]]) -> Line:
    fields = {
        "what": to_json(event),
        "orders": [[host, to_json(order)] for host, order in orders],
        "host": moment.host,
        "number": moment.number,
        "now_s": moment.now_s,
        "now_ns": moment.now_ns,
    }
    return Line(kind=DECIDED, t_ns=moment.now_ns, fields=fields)


def _host(order: tuple[int, AgentOrder]) -> int:
    return order[0]
