"""Steps of a plan in a run: own samples, clocks, faults, and one word of all ranks at the end of each step."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.runtime.asking import Asking, Computed
from trimtab.runtime.epoch_transport import EpochTransport
from trimtab.runtime.faults import Faults
from trimtab.runtime.laid_out.snapshots import Snapshots
from trimtab.runtime.lowering import IGNORED_TARGET, Members, Microbatch, Outcome, Rank
from trimtab.runtime.process_groups import Group
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.step import Requests, StepResult, Work
from trimtab.runtime.watch import Watch
from trimtab.terms import Clock, Phase


class Timed:
    """Tells clocks and watch when a rank waits for others."""

    def __init__(self, recorder: Recorder, watch: Watch) -> None:
        self._recorder, self._watch = recorder, watch
        self._waits: defaultdict[str, int] = defaultdict(int)

    @contextmanager
    def waiting(self, kind: str, members: Members) -> Iterator[None]:
        """A wait inside a collective of a group, or for a message of a stage."""
        clock = Clock.BUBBLE if kind == "receive" else Clock.COMM
        outer = self._recorder.switch(clock)
        started_ns = time.monotonic_ns()
        name = f"{kind} {'-'.join(map(str, members))}"
        with self._watch.waiting(name):
            yield
        ended_ns = time.monotonic_ns()
        self._recorder.switch(outer, at_ns=ended_ns)
        if clock is Clock.COMM:
            self._waits[name] += ended_ns - started_ns

    def taken(self) -> list[tuple[str, int]]:
        """Nanoseconds by kind and group since the last call."""
        found = sorted(self._waits.items())
        self._waits.clear()
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class LaidOutRules:
    """Constants of the run that a step depends on.

    Args:
        learning_rate: Of a step.
        ranks_per_replica: That compute one microbatch together.
    """

    learning_rate: Callable[[int], float]
    ranks_per_replica: int


class LaidOutRunner:
    """Runs steps on one rank; see ``trainer.Runner``.

    Args:
        rules: Of the run.
        rank: Of the plan.
        load: Microbatches of a share of a step: (step, first sample inside the batch, samples).
        timed: Is told of waits.
        snapshots: Takes copies of the rank's pieces; None if none are taken.
    """

    def __init__(
        self,
        *,
        rules: LaidOutRules,
        rank: Rank,
        load: Callable[[int, int, int], list[Microbatch]],
        timed: Timed,
        recorder: Recorder,
        faults: Faults,
        watch: Watch,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._rules, self._rank, self._load, self._timed = rules, rank, load, timed
        self._snapshots = snapshots
        self._recorder, self._faults, self._watch = recorder, faults, watch
        self._group: Group | None = None
        self._transport: EpochTransport | None = None
        self.work = Work()

    def held(self, step: int) -> tuple[int, ...]:
        """See Runner: none, for a step that was interrupted is computed again."""
        return ()

    def connect(self, group: Group) -> None:
        """An epoch begins: open the groups of the plan's collectives."""
        self._group = group
        self._transport = EpochTransport(group, self._timed.waiting)
        self._rank.connect(self._transport)

    def enter(self, group: Group, *, step: int, owners: Sequence[int]) -> None:
        """See Runner; which share is whose follows from the plan."""

    def rewind(self, step: int) -> None:
        """See Runner: nothing is remembered."""

    def forget(self) -> None:
        """See Runner: nothing is kept."""

    def leave(self) -> None:
        """See Runner."""
        if self._transport is not None:
            self._transport.drop()
        self._group = self._transport = None

    def answer(self, microbatch: Microbatch) -> Computed:
        """See Runner."""
        raise AssertionError("a plan computes its microbatches itself")

    def ask(self, step: int, requests: Requests) -> Asking[StepResult]:
        """See Runner; nothing is handed out."""
        yield from ()
        return self._run(step, requests)

    def _run(self, step: int, requests: Requests) -> StepResult:
        assert self._group is not None, "steps are run inside an epoch"
        self.work = Work()
        self._watch.enter(Phase.COMPUTE, step)
        microbatches = self._microbatches(step)
        with self._recorder.within(Clock.COMPUTE):
            started = time.perf_counter()
            computed = self._rank.compute(microbatches, step, between=self._between)
            self._faults.slow_down(step, time.perf_counter() - started)
            self._faults.in_timer(Clock.COMPUTE, step)
            self._faults.at_phase(Phase.COMPUTE, step)
            if self._faults.poisons(step):
                computed.poison()
            self._watch.enter(Phase.APPLY, step)
            self._faults.at_phase(Phase.REDUCE, step)
            agreed: list[_Word] = []

            def agree(outcome: Outcome) -> None:
                agreed.append(self._agreed(outcome.loss, requests, step))
                self._faults.at_phase(Phase.APPLY, step)

            outcome = self._rank.update(computed, step, agree=agree)
            (word,) = agreed
            loss = word.loss
        if word.copies:
            self._copy(step + 1)
        self.work.waits = self._timed.taken()
        self.work.sent_bytes = self._group.tally.taken()
        norm = outcome.norm
        is_finite = norm is not None and math.isfinite(norm) and math.isfinite(loss)
        return StepResult(
            step=step,
            loss=loss if outcome.num_tokens else None,
            grad_norm=norm,
            lr=self._rules.learning_rate(step),
            targets=outcome.num_tokens,
            is_applied=bool(outcome.num_tokens) and is_finite,
            stop_agreed=word.stops,
            border_agreed=word.is_border,
        )

    def _between(self) -> None:
        """Between two actions of a pipeline."""
        self._watch.move()
        self._watch.raise_if_fenced()

    def _microbatches(self, step: int) -> list[Microbatch]:
        """The rank's own rows; where it has no share left, rows that predict nothing."""
        work, found = self._rank.plan.work, []
        samples = work.batch // work.num_parts
        shares = self._rank.ownership.of(self._rank.rank)
        outer = self._recorder.switch(Clock.INPUT_WAIT)
        for share in shares:
            found += self._load(step, share * samples, samples)
        self._faults.in_timer(Clock.INPUT_WAIT, step)
        self._recorder.switch(outer)
        self._count(found, shares)
        for share in shares:
            self._recorder.event("share", step=step, share=share)
        while len(found) < work.microbatches:
            nothing = torch.full((work.microbatch, work.sequence), IGNORED_TARGET)
            found.append((torch.zeros_like(nothing), nothing))
        return found

    def _count(self, microbatches: Sequence[Microbatch], shares: Sequence[int]) -> None:
        """Positions and targets that fall to this rank, of those that it computes together with others."""
        tokens = sum(tokens.numel() for tokens, _ in microbatches)
        targets = sum(int((targets != IGNORED_TARGET).sum()) for _, targets in microbatches)
        ranks = self._rules.ranks_per_replica
        place = self._rank.rank % ranks
        self.work.tokens = tokens // ranks + (place < tokens % ranks)
        self.work.targets = min(targets // ranks + (place < targets % ranks), self.work.tokens)
        self.work.computed = list(shares)

    def _agreed(self, loss: float | None, requests: Requests, step: int) -> "_Word":
        """The loss, which only ranks of the last stage know, and what all agree on at this border.

        Whoever returns from here knows that every rank has all sums of the step: it is going to be applied.
        """
        assert self._group is not None, "steps are run inside an epoch"
        copies = self._snapshots
        word: Tensor = torch.zeros(5, dtype=torch.float64)
        if loss is not None and self._rank.says_loss:
            word[0] = loss
        word[1], word[2] = float(requests.stop), float(requests.border)
        if copies is not None:
            word[3] = float(copies.is_pending)
            word[4] = float(self._group.rank == 0 and copies.wants(step + 1))
        with self._timed.waiting("all_reduce", self._group.members):
            self._group.all_reduce(word)
        said, stop, border, pending, wanted = word.tolist()
        return _Word(
            loss=said, stops=stop > 0, is_border=border > 0, copies=wanted > 0 and pending == 0 and stop == 0
        )

    def _copy(self, finished: int) -> None:
        """Copy the own pieces; they are sent while the next steps compute."""
        assert self._snapshots is not None, "somebody wanted a copy"
        with self._recorder.within(Clock.CHECKPOINT_STALL):
            self._snapshots.take(finished)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Word:
    """What all ranks know at a border.

    Args:
        loss: Mean of the step.
        stops: Whether somebody wants to stop.
        is_border: Whether newcomers wait.
        copies: Whether all take a copy of their pieces.
    """

    loss: float
    stops: bool
    is_border: bool
    copies: bool
