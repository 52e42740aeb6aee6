"""Where does the time of a step go on one rank?

Every nanosecond of a step is in one class: computing by phase, collectives, the pipeline, or none of them. Ranks of one
machine read one monotonic clock, so who was late to a collective is seen from when each of them came.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from trimtab.plan.program import Operator, Phase
from trimtab.runtime.lowering.scopes import Observer, Scope
from trimtab.runtime.lowering.wires import Expected, Line, Posted, Sent, Wires

_Result = TypeVar("_Result")

now_ns = time.monotonic_ns
"""The clock of all measurements."""


@dataclass(kw_only=True, slots=True)
class Run:
    """One collective that this rank took part in.

    Args:
        what: Is sent.
        members: Ranks that take part.
        start_ns: When this rank came; 0 before it has.
        end_ns: When it had what it wanted.
        busy_ns: That it was sending or waiting; a ring of attention computes in between.
        waited_ns: Of it, that nothing was computed in: all of it, but for a sum that runs beside the backward pass.
        waited_from_ns: When that began.
    """

    what: Sent
    members: tuple[int, ...]
    start_ns: int = 0
    end_ns: int = 0
    busy_ns: int = 0
    waited_ns: int = 0
    waited_from_ns: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """One step on one rank, in nanoseconds.

    Args:
        wall_ns: From begin to end.
        computing_ns: By phase; of the update the optimizer and the norm.
        pipeline_ns: Waiting for other stages.
        runs: Of collectives, in order.
    """

    wall_ns: int
    computing_ns: Mapping[Phase, int]
    pipeline_ns: int
    runs: Sequence[Run]

    @property
    def collectives_ns(self) -> int:
        """In collectives: sending, and waiting for whoever is late; what ran beside the computation is not in it."""
        return sum(run.waited_ns for run in self.runs)

    @property
    def beside_ns(self) -> int:
        """In collectives while something was computed."""
        return sum(run.busy_ns - min(run.busy_ns, run.waited_ns) for run in self.runs)

    @property
    def unattributed_ns(self) -> int:
        """Between operators: what no class claims."""
        return self.wall_ns - sum(self.computing_ns.values()) - self.pipeline_ns - self.collectives_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """Time of one step's collectives on one rank, in nanoseconds by what is sent.

    Args:
        busy_ns: In all runs.
        waited_ns: Of it, that nothing was computed in.
        late_ns: Of that, until the last member had come.
        runs: How many.
    """

    busy_ns: Mapping[Sent, int]
    waited_ns: Mapping[Sent, int]
    late_ns: Mapping[Sent, int]
    runs: Mapping[Sent, int]


def waits_of(steps: Sequence[StepTimes]) -> list[Waits]:
    """Who waited for whom in one step.

    Args:
        steps: The same one, by rank.
    """
    came: dict[tuple[Sent, tuple[int, ...], int], int] = {}
    for step in steps:
        for key, run in _numbered(step.runs):
            came[key] = max(came.get(key, 0), run.start_ns)
    found = []
    for step in steps:
        busy, waited, late, runs = Counter[Sent](), Counter[Sent](), Counter[Sent](), Counter[Sent]()
        for key, run in _numbered(step.runs):
            busy[run.what] += run.busy_ns
            waited[run.what] += run.waited_ns
            late[run.what] += min(run.waited_ns, max(0, came[key] - run.waited_from_ns))
            runs[run.what] += 1
        found.append(Waits(busy_ns=busy, waited_ns=waited, late_ns=late, runs=runs))
    return found


def _numbered(runs: Sequence[Run]) -> list[tuple[tuple[Sent, tuple[int, ...], int], Run]]:
    """Runs with what makes them the same one on all ranks: what, between whom, and for which time."""
    before: Counter[tuple[Sent, tuple[int, ...]]] = Counter()
    found = []
    for run in runs:
        number = before[run.what, run.members]
        before[run.what, run.members] += 1
        found.append(((run.what, run.members, number), run))
    return found


class Stopwatch(Observer):
    """Takes the times of steps.

    Args:
        wires: That the rank uses.
    """

    def __init__(self, wires: "TimedWires") -> None:
        self._wires = wires
        self._computing: defaultdict[Phase, int] = defaultdict(int)
        self._start = self._sent_before = self._step_start = 0

    def start(self) -> None:
        """A step begins."""
        self._computing.clear()
        self._wires.restart()
        self._step_start = now_ns()

    def stop(self) -> StepTimes:
        """It has ended."""
        wall = now_ns() - self._step_start
        return StepTimes(
            wall_ns=wall,
            computing_ns=dict(self._computing),
            pipeline_ns=self._wires.pipeline_ns,
            runs=list(self._wires.all_runs()),
        )

    def begins(self, scope: Scope, operator: Operator) -> None:
        """Start the clock of an operator."""
        self._start, self._sent_before = now_ns(), self._wires.busy_ns

    def made(self, scope: Scope, operator: Operator) -> None:
        """What is not spent on the wires is computing."""
        sending = self._wires.busy_ns - self._sent_before
        self._computing[scope.phase] += now_ns() - self._start - sending


class TimedWires(Wires):
    """Wires that note when they are used, on the process groups of others.

    Args:
        wires: Whose process groups are used.
    """

    def __init__(self, wires: Wires) -> None:
        super().__init__(wires.rank, wires.size)
        self.transport = wires.transport
        self.posted = _TimedPosted(wires=self)
        self._beside: dict[tuple[int, ...], _WiresBeside] = {}
        self.restart()

    def restart(self) -> None:
        """Forget all times."""
        self.runs: list[Run] = []
        self.pipeline_ns = self.busy_ns = 0
        for wires in self._beside.values():
            wires.restart()

    def all_runs(self) -> Iterator[Run]:
        """Those of threads beside this one, too."""
        yield from self.runs
        for wires in self._beside.values():
            yield from wires.runs

    def beside(self, members: tuple[int, ...]) -> Wires:
        """As that of ``Wires``; its runs are noted, and count where they are waited for."""
        found = self._beside[members] = _WiresBeside(super().beside(members))
        return found

    def join(self, what: Sent, members: tuple[int, ...], work: Future[Any]) -> None:
        """As that of ``Wires``; this thread computes nothing meanwhile."""
        start = now_ns()
        super().join(what, members, work)
        waited = now_ns() - start
        self.busy_ns += waited
        run = self._beside[members].joined(what)
        run.waited_ns, run.waited_from_ns = waited, start

    def meet(self) -> None:
        """Wait for all other ranks, so that they begin a step together."""
        if self.size > 1:
            dist.barrier()

    def line(self, what: Sent, members: Sequence[int]) -> "Line":
        """As that of ``Wires``; the run of the collective is noted."""
        self.counts[what].runs += 1
        run = Run(what=what, members=tuple(members))
        self.runs.append(run)
        return TimedLine(self, run)

    def take(self, expected: Expected) -> Tensor:
        """As that of ``Wires``; waiting for another stage is a bubble."""
        start = now_ns()
        found = super().take(expected)
        self.pipeline_ns += now_ns() - start
        return found


class _WiresBeside(TimedWires):
    """Those of a thread beside the one that computes: nobody waits while they are used."""

    def __init__(self, wires: Wires) -> None:
        super().__init__(wires)
        self.counts = wires.counts

    def restart(self) -> None:
        """As that of ``TimedWires``."""
        super().restart()
        self._unjoined: list[Run] = []

    def joined(self, what: Sent) -> Run:
        """The oldest of these runs that nobody has waited for; a sum once a step may be several, of which it is the last."""
        found = [run for run in self._unjoined if run.what == what]
        run = found[-1] if what.phase == Phase.UPDATE.value else found[0]
        self._unjoined = [other for other in self._unjoined if other is not run]
        return run

    def line(self, what: Sent, members: Sequence[int]) -> "Line":
        """As that of ``TimedWires``."""
        found = super().line(what, members)
        assert isinstance(found, TimedLine), "lines are timed"
        found.is_beside = True
        self._unjoined.append(self.runs[-1])
        return found


@dataclass(kw_only=True, slots=True)
class _TimedPosted(Posted):
    """Messages to other stages; waiting until they have left is a bubble too."""

    wires: TimedWires

    def wait(self) -> None:
        start = now_ns()
        Posted.wait(self)
        self.wires.pipeline_ns += now_ns() - start


class TimedLine(Line):
    """A line that notes the times of one run.

    Args:
        wires: Of this rank.
        run: That is noted.
        order: As that of ``Line``.
    """

    def __init__(self, wires: TimedWires, run: Run, order: Sequence[int] | None = None) -> None:
        super().__init__(wires, run.what, run.members, order)
        self._timed_wires, self._run, self._is_inside = wires, run, False
        self.is_beside = False

    def among(self, places: Sequence[int]) -> "TimedLine":
        """As that of ``Line``."""
        found = TimedLine(self._timed_wires, self._run, [self.order[place] for place in places])
        found.is_beside = self.is_beside
        return found

    def send(self, target: int, tensor: Tensor) -> Posted:
        """As that of ``Line``, timed."""
        return self._timed(lambda: Line.send(self, target, tensor))

    def receive(self, source: int, like: Tensor) -> Tensor:
        """As that of ``Line``, timed."""
        return self._timed(lambda: Line.receive(self, source, like))

    def swap(self, target: int, tensor: Tensor, source: int, like: Tensor) -> Tensor:
        """As that of ``Line``, timed."""
        return self._timed(lambda: Line.swap(self, target, tensor, source, like))

    def all_reduce(self, flat: Tensor, operation: str) -> Tensor:
        """As that of ``Line``, timed."""
        return self._timed(lambda: Line.all_reduce(self, flat, operation))

    def reduce_scatter(self, chunks: Sequence[Tensor], operation: str) -> Tensor:
        """As that of ``Line``, timed."""
        return self._timed(lambda: Line.reduce_scatter(self, chunks, operation))

    def all_gather(self, piece: Tensor) -> list[Tensor]:
        """As that of ``Line``, timed."""
        return self._timed(lambda: Line.all_gather(self, piece))

    def all_to_all(self, chunks: Sequence[Tensor]) -> list[Tensor]:
        """As that of ``Line``, timed."""
        return self._timed(lambda: Line.all_to_all(self, chunks))

    def agree_on_largest(self, number: Tensor) -> Tensor:
        """As that of ``Line``, timed."""
        return self._timed(lambda: Line.agree_on_largest(self, number))

    def _timed(self, act: Callable[[], _Result]) -> _Result:
        if self._is_inside:
            return act()
        start, self._is_inside = now_ns(), True
        found = act()
        end, self._is_inside = now_ns(), False
        run = self._run
        run.start_ns, run.end_ns = run.start_ns or start, end
        run.busy_ns += end - start
        if not self.is_beside:
            run.waited_from_ns = run.start_ns
            run.waited_ns += end - start
            self._timed_wires.busy_ns += end - start
        return found
