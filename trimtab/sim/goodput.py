"""What is left of weeks of training when things fail? One run, its faults and its policies, to the nanosecond.

Time passes between events only: a fault, a save, a node that joins. Every nanosecond of the run has one class of the
ledger; work that is done again is a label on it, as in the ledger of a real run.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trimtab.policy.recovery import IN_THE_STEP, Damage, Recovery, WayBack, recover
from trimtab.sim.cadences import Cadence, Seen
from trimtab.sim.faults import Fault, FaultKind
from trimtab.terms import LedgerClass, OnLoss

_NS = 10**9
_REMEMBERED = 200
"""Rollbacks that a cadence is told of; the oldest of so many lies many of its half-lives ago."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryTimes:
    """How long each part of a recovery takes, in seconds.

    Args:
        crash_detect_s: Until a node that died is known to be dead. ByteRobust (arXiv 2509.16293, second-hand): 2 to 60 s
            with probes.
        hang_detect_s: Until one that stopped is: the job's limit on progress.
        corruption_detect_s: Until wrong numbers are noticed, which is trained on meanwhile; a judgement.
        reform_s: Survivors agree and connect anew. MegaScale (NSDI24): less than 5 s on 2,048 devices, less than 30 s
            above 10,000.
        snapshot_load_s: Take a lost piece from a buddy's memory.
        restart_s: Start all processes anew and load the newest checkpoint. Kokolis et al. (HPCA25) assume 5 minutes,
            MegaScale reports up to 10 to diagnose; a judgement between.
        join_s: Until a spare node holds the state and may join. TrainMover (arXiv 2412.12636): 20 s with standby machines.
        repair_s: Until a node that failed is a spare again; a judgement.
    """

    crash_detect_s: float = 10.0
    hang_detect_s: float = 60.0
    corruption_detect_s: float = 3600.0
    reform_s: float = 10.0
    snapshot_load_s: float = 10.0
    restart_s: float = 600.0
    join_s: float = 20.0
    repair_s: float = 14_400.0

    def detect_s(self, kind: FaultKind) -> float:
        """How long all wait until a fault of this kind is known."""
        return self.hang_detect_s if kind is FaultKind.HANG else self.crash_detect_s


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedRun:
    """What is run, and how it meets a fault.

    Args:
        step_s: Seconds of a step with all nodes.
        num_nodes: That compute.
        num_spares: That wait.
        unit_nodes: Nodes that hold the whole state among them: all, if it exists once.
        num_shares: Of the batch; 0 if it is cut as the nodes that live allow.
        rule: On a loss, ``auto`` resolved.
        stall_s, drain_s: Of a save.
        snapshot_every_s: Between two snapshots in buddies' memory; None for none.
        snapshot_stall_s: How long one holds up training.
        times: Of recoveries.
    """

    step_s: float
    num_nodes: int
    num_spares: int
    unit_nodes: int
    num_shares: int
    rule: OnLoss
    stall_s: float
    drain_s: float
    snapshot_every_s: float | None = None
    snapshot_stall_s: float = 0.0
    times: RecoveryTimes = field(default_factory=RecoveryTimes)

    def __post_init__(self) -> None:
        assert self.step_s > 0
        assert 1 <= self.unit_nodes <= self.num_nodes
        assert self.rule is not OnLoss.AUTO
        assert self.snapshot_every_s is None or self.snapshot_every_s > self.snapshot_stall_s

    @property
    def num_units(self) -> int:
        """Groups of nodes that hold the whole state."""
        return self.num_nodes // self.unit_nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Happened:
    """A line of a simulated run's journal.

    Args:
        at_s: Seconds after the start.
        what: The fault, the way back and its reason, a save, a node that joined.
        lost_s: Seconds of work that are done again.
    """

    at_s: float
    what: str
    lost_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a simulated run.

    Args:
        elapsed_ns: Of the run, and of each of its devices.
        classes: Nanoseconds by class of the ledger; they add up to ``elapsed_ns``.
        lost_ns: Of ``useful`` and ``degraded``: full-speed work that was done again.
        work_ns: Full-speed work that stands at the end.
        num_saves: Begun.
        ways: How often each way back was taken.
        events: Everything that happened, in order.
    """

    elapsed_ns: int
    classes: dict[LedgerClass, int]
    lost_ns: int
    work_ns: int
    num_saves: int
    ways: dict[WayBack, int]
    events: tuple[Happened, ...]

    @property
    def goodput(self) -> float:
        """Standing work over the time that was paid for."""
        return self.work_ns / self.elapsed_ns


def simulate(run: SimulatedRun, faults: Sequence[Fault], cadence: Cadence, *, horizon_s: float) -> Outcome:
    """Train for so long under these faults.

    Args:
        run: What is run.
        faults: In order; nodes from ``num_nodes`` on are the spare ones.
        cadence: When to save.
        horizon_s: Seconds to train.
    """
    return _Course(run, cadence, horizon_ns=_ns(horizon_s)).under(faults)


def _ns(seconds: float) -> int:
    return round(seconds * _NS)


@dataclass(slots=True)
class _Save:
    """A state on its way to storage, or there."""

    staged_ns: int
    work_ns: int


@dataclass(order=True, slots=True)
class _Coming:
    """A fault to be met; corruption twice: when it begins, which nobody sees, and when it is noticed."""

    at_ns: int
    fault: Fault = field(compare=False)
    since_ns: int | None = field(default=None, compare=False)


class _Course:
    """The state of a run between two events."""

    def __init__(self, run: SimulatedRun, cadence: Cadence, *, horizon_ns: int) -> None:
        self._run, self._cadence, self._horizon_ns = run, cadence, horizon_ns
        self._now_ns = 0
        self._work_ns = 0
        self._lost_ns = 0
        self._classes: dict[LedgerClass, int] = dict.fromkeys(LedgerClass, 0)
        self._pause: deque[tuple[LedgerClass, int]] = deque()
        self._crew = _Crew(run)
        self._durable = [_Save(staged_ns=0, work_ns=0)]
        self._draining: tuple[int, _Save] | None = None
        self._resumed_work_ns = 0
        self._rollbacks_ns: deque[int] = deque(maxlen=_REMEMBERED)
        self._num_saves = 0
        self._ways = dict.fromkeys(WayBack, 0)
        self._events: list[Happened] = []
        self._due_ns = self._next_save_ns()

    def under(self, faults: Iterable[Fault]) -> Outcome:
        """Meet every fault, then go on to the end."""
        coming = [_Coming(at_ns=_ns(fault.at_s), fault=fault) for fault in faults]
        heapq.heapify(coming)
        while coming and coming[0].at_ns < self._horizon_ns:
            struck = heapq.heappop(coming)
            self._go_to(struck.at_ns)
            if struck.fault.kind is FaultKind.CORRUPTION and struck.since_ns is None:
                heapq.heappush(coming, self._noticed_later(struck))
            else:
                self._strike(struck)
        self._go_to(self._horizon_ns)
        return Outcome(
            elapsed_ns=self._horizon_ns,
            classes={found: ns for found, ns in self._classes.items() if ns},
            lost_ns=self._lost_ns,
            work_ns=self._work_ns,
            num_saves=self._num_saves,
            ways=self._ways,
            events=tuple(self._events),
        )

    def _noticed_later(self, struck: "_Coming") -> "_Coming":
        """Wrong numbers look like training until they are noticed."""
        delay_ns = _ns(self._run.times.corruption_detect_s)
        return _Coming(at_ns=struck.at_ns + delay_ns, fault=struck.fault, since_ns=struck.at_ns)

    # Time passes.

    def _go_to(self, end_ns: int) -> None:
        while self._now_ns < end_ns:
            self._settle()
            if self._pause:
                self._wait(end_ns)
            elif self._crew.capacity == 0:
                self._spend(LedgerClass.QUEUE_IDLE, min(end_ns, self._crew.next_arrival_ns))
            elif self._now_ns >= self._due_ns:
                self._save()
            else:
                self._train(min(end_ns, self._due_ns, self._crew.next_arrival_ns))
        self._settle()

    def _settle(self) -> None:
        """What is due by now without taking time: saves become durable, nodes join."""
        if self._draining is not None and self._draining[0] <= self._now_ns:
            self._durable.append(self._draining[1])
            self._draining = None
        if self._crew.seat_arrivals(self._now_ns) and not self._pause:
            self._pause.append((LedgerClass.RESTART, _ns(self._run.times.reform_s)))
            self._note("nodes joined")

    def _wait(self, end_ns: int) -> None:
        found, left_ns = self._pause.popleft()
        spent_ns = min(left_ns, end_ns - self._now_ns)
        self._spend(found, self._now_ns + spent_ns)
        if spent_ns < left_ns:
            self._pause.appendleft((found, left_ns - spent_ns))

    def _spend(self, found: LedgerClass, end_ns: int) -> None:
        self._classes[found] += end_ns - self._now_ns
        self._now_ns = end_ns

    def _train(self, end_ns: int) -> None:
        """Work until then; what fewer nodes lose is degraded, what snapshots take is a stall."""
        passed_ns = end_ns - self._now_ns
        stall_ns = 0
        if self._run.snapshot_every_s is not None:
            stall_ns = round(passed_ns * self._run.snapshot_stall_s / self._run.snapshot_every_s)
        worked_ns = int((passed_ns - stall_ns) * self._crew.capacity)
        self._classes[LedgerClass.CHECKPOINT_STALL] += stall_ns
        self._classes[LedgerClass.USEFUL] += worked_ns
        self._classes[LedgerClass.DEGRADED] += passed_ns - stall_ns - worked_ns
        self._work_ns += worked_ns
        self._now_ns = end_ns

    # Saves.

    def _save(self) -> None:
        self._num_saves += 1
        staged = _Save(staged_ns=self._now_ns, work_ns=self._work_ns)
        self._pause.append((LedgerClass.CHECKPOINT_STALL, _ns(self._run.stall_s)))
        self._draining = (self._now_ns + _ns(self._run.stall_s + self._run.drain_s), staged)
        self._due_ns = self._next_save_ns() + _ns(self._run.stall_s)

    def _next_save_ns(self) -> int:
        seen = Seen(
            step_s=self._run.step_s,
            stall_s=self._run.stall_s,
            drain_s=self._run.drain_s,
            running_s=self._now_ns / _NS,
            failure_ages_s=[(self._now_ns - at_ns) / _NS for at_ns in self._rollbacks_ns],
        )
        interval_s = self._cadence.interval_s(seen)
        return self._horizon_ns if math.isinf(interval_s) else self._now_ns + max(_ns(interval_s), 1)

    # Faults.

    def _strike(self, struck: "_Coming") -> None:
        fault = struck.fault
        if fault.kind is FaultKind.STORAGE:
            self._draining = None
            self._note("storage failed: the save under way is lost")
            return
        lost = self._crew.lose(fault.nodes, self._now_ns)
        if not lost and struck.since_ns is None:
            return
        damage = Damage(
            rule=self._run.rule,
            whole_units=self._crew.whole_units,
            has_snapshot=self._run.snapshot_every_s is not None
            and not _are_buddies(lost, self._run.num_nodes),
            is_spoilt=struck.since_ns is not None,
        )
        self._go_back(struck, recover(damage))

    def _go_back(self, struck: "_Coming", recovery: Recovery) -> None:
        """Lose what the way back costs, and wait for it; a recovery under way begins anew."""
        times, before_ns = self._run.times, self._work_ns
        self._pause.clear()
        match recovery.way:
            case WayBack.FINISH:
                self._redo(self._in_step_ns() // self._run.num_units)
                pause_s = times.reform_s
            case WayBack.REDO:
                self._redo(self._in_step_ns())
                pause_s = times.reform_s
            case WayBack.SNAPSHOT:
                self._redo(self._since_snapshot_ns())
                pause_s = times.reform_s + times.snapshot_load_s
            case WayBack.CHECKPOINT:
                self._load_newest(before_ns=struck.since_ns)
                self._crew.wait_for_all()
                pause_s = times.restart_s
        if struck.since_ns is None:
            self._pause.append((LedgerClass.DETECT, _ns(times.detect_s(struck.fault.kind))))
        self._pause.append((LedgerClass.RESTART, _ns(pause_s)))
        self._ways[recovery.way] += 1
        nodes = ", ".join(map(str, struck.fault.nodes))
        self._note(
            f"{struck.fault.kind} of node {nodes}: {recovery.way}, for {recovery.reason}",
            lost_ns=before_ns - self._work_ns,
        )

    def _redo(self, lost_ns: int) -> None:
        lost_ns = min(lost_ns, self._work_ns)
        self._work_ns -= lost_ns
        self._lost_ns += lost_ns

    def _in_step_ns(self) -> int:
        """Of the step under way, at full speed."""
        return self._work_ns % _ns(self._run.step_s)

    def _since_snapshot_ns(self) -> int:
        assert self._run.snapshot_every_s is not None
        return (self._work_ns - self._resumed_work_ns) % _ns(self._run.snapshot_every_s)

    def _load_newest(self, *, before_ns: int | None) -> None:
        """Back to the newest checkpoint, or to that of before; the save under way goes down with its processes."""
        self._draining = None
        if before_ns is not None:
            self._durable = [save for save in self._durable if save.staged_ns <= before_ns]
        self._rollbacks_ns.append(self._now_ns)
        self._redo(self._work_ns - self._durable[-1].work_ns)
        self._resumed_work_ns = self._work_ns
        self._due_ns = self._next_save_ns()

    def _note(self, what: str, *, lost_ns: int = 0) -> None:
        self._events.append(Happened(at_s=self._now_ns / _NS, what=what, lost_s=lost_ns / _NS))


def _are_buddies(lost: Sequence[int], num_nodes: int) -> bool:
    """Whether two lost nodes keep each other's snapshots: a node's buddy stands half the cluster away."""
    half = num_nodes // 2
    return num_nodes < 2 or any((seat + half) % num_nodes in lost for seat in lost)


class _Crew:
    """Which node sits where, and who comes when."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._seat_of = {node: node for node in range(run.num_nodes)}
        self._spares = deque(range(run.num_nodes, run.num_nodes + run.num_spares))
        self._vacant: set[int] = set()
        self._joining: list[tuple[int, int, int]] = []  # when, seat, node
        self._repairs: list[tuple[int, int]] = []  # when, node
        self._waits_for_all = False
        self.capacity = 1.0

    @property
    def whole_units(self) -> int:
        # Nodes that are left over belong to the last group.
        last = self._run.num_units - 1
        broken = {min(seat // self._run.unit_nodes, last) for seat in self._vacant}
        return self._run.num_units - len(broken)

    @property
    def next_arrival_ns(self) -> int:
        """When the next node joins or is repaired; far away if none is on its way."""
        return min((queue[0][0] for queue in (self._joining, self._repairs) if queue), default=2**62)

    def lose(self, nodes: Sequence[int], now_ns: int) -> list[int]:
        """The seats that these nodes leave; those that sit nowhere harm nobody."""
        lost = []
        for node in nodes:
            seat = self._seat_of.pop(node, None)
            if seat is None:
                continue
            lost.append(seat)
            self._vacant.add(seat)
            heapq.heappush(self._repairs, (now_ns + _ns(self._run.times.repair_s), node))
        self._call_spares(now_ns)
        self._count()
        return lost

    def wait_for_all(self) -> None:
        """Started anew, the run needs every seat."""
        self._waits_for_all = True
        self._count()

    def seat_arrivals(self, now_ns: int) -> bool:
        """Seat who is there by now; whether anybody joined a run that goes on."""
        while self._repairs and self._repairs[0][0] <= now_ns:
            self._spares.append(heapq.heappop(self._repairs)[1])
        self._call_spares(now_ns)
        has_joined = False
        while self._joining and self._joining[0][0] <= now_ns:
            _, seat, node = heapq.heappop(self._joining)
            self._seat_of[node] = seat
            self._vacant.discard(seat)
            has_joined = True
        if not has_joined:
            return False
        was_waiting = self._waits_for_all
        if not self._vacant:
            self._waits_for_all = False
        self._count()
        return not was_waiting

    def _call_spares(self, now_ns: int) -> None:
        if not self._vacant or not self._spares:
            return
        called = {seat for _, seat, _ in self._joining}
        for seat in sorted(self._vacant - called):
            if not self._spares:
                return
            heapq.heappush(
                self._joining, (now_ns + _ns(self._run.times.join_s), seat, self._spares.popleft())
            )

    def _count(self) -> None:
        """Speed as a part of the full one."""
        run = self._run
        if not self._vacant:
            self.capacity = 1.0
        elif self._waits_for_all:
            self.capacity = 0.0
        elif run.rule not in IN_THE_STEP:
            self.capacity = 1 - len(self._vacant) / run.num_nodes
        elif self.whole_units == 0:
            self.capacity = 0.0
        else:
            self.capacity = _speed(run.num_shares, run.num_units, self.whole_units)


def _speed(num_shares: int, num_units: int, living: int) -> float:
    """Of a step in which so many of the units compute all shares: the one with most shares decides."""
    if num_shares == 0:
        return living / num_units
    return math.ceil(num_shares / num_units) / math.ceil(num_shares / living)
