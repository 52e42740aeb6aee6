"""The step transaction: compute shares, reduce in the fixed tree, guard, commit.

Parameters do not change before the commit, so everything before it can be repeated. The gradients of own shares are
kept until the commit: after a loss, survivors compute only the lost ones.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.plan import TAIL, leaf_capacity
from trimtab.policy import assign_shares, shares_of
from trimtab.policy.probing import MAX_NORMS, suspicious_norm
from trimtab.policy.spikes import SpikeLimits, SpikeRules, spike_limits, spike_reason
from trimtab.runtime.asking import Asking, Computed, answered
from trimtab.runtime.balancing import Balancer
from trimtab.runtime.faults import Faults
from trimtab.runtime.flat_state import (
    BORDER_REQUESTS,
    LOSS_SUM,
    NORM_LIMIT,
    NUM_TARGETS,
    SKIP_REQUESTS,
    SPIKE_LOSS,
    SPIKE_NORM,
    STOP_REQUESTS,
    FlatState,
)
from trimtab.runtime.models import Model
from trimtab.runtime.norms import sum_of_squares
from trimtab.runtime.optimizers import Optimizer
from trimtab.runtime.probing import Prober, ProbeRules
from trimtab.runtime.process_groups import Group
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.share_sum import ShareSum
from trimtab.runtime.watch import Watch
from trimtab.spec import GRADIENT, PARAMETER, SpikeAnswer
from trimtab.terms import Clock, Phase

Microbatch = tuple[Tensor, Tensor]
"""Tokens and targets, int64, each (samples, sequence); targets of -100 do not count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRules:
    """Constants of the run that a step depends on.

    Args:
        num_shares: 0 when shares are off: every rank computes one part of the batch and the backend adds.
        batch: Samples of the global batch.
        clip: Largest gradient norm; None for no clipping.
        max_devices: The most ranks that an epoch of this run may have.
        is_redone: After a loss the whole step is computed again.
        probe: How ranks that compute wrong numbers are looked for.
        spikes: What a spike is, and what is done about it.
        balance_every: Steps between two looks at who is slow and should have fewer shares; 0: never.
        prior_share_s: Relative seconds a share by rank, before anything is measured; empty if all devices are alike.
    """

    num_shares: int
    batch: int
    seed: int
    clip: float | None
    max_devices: int
    is_redone: bool = False
    probe: ProbeRules = field(default_factory=ProbeRules)
    spikes: SpikeRules = field(default_factory=lambda: SpikeRules(answer=SpikeAnswer.OFF))
    balance_every: int = 0
    prior_share_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Work:
    """What one rank did in a step, or in an attempt at one.

    Args:
        waits: Name of each collective and the nanoseconds spent in it, in order.
        computed, reused, recovered: Shares computed here; kept from an earlier attempt; computed for a lost peer.
        tokens, targets: Positions computed here, and those of them that count for the loss.
        sent_bytes: Payload that this rank has sent.
    """

    waits: list[tuple[str, int]] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    reused: list[int] = field(default_factory=list)
    recovered: list[int] = field(default_factory=list)
    tokens: int = 0
    targets: int = 0
    sent_bytes: int = 0


@dataclass(kw_only=True, slots=True)
class Requests:
    """What this rank wants all to agree on at the next step border."""

    stop: bool = False
    border: bool = False
    skip: bool = False
    """The samples of the step shall be left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What came out of one step; the same values on every rank.

    ``spike`` says why the step is far from those before; ``is_left_out`` that it was not applied because that was asked for.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    lr: float
    targets: int
    is_applied: bool
    stop_agreed: bool
    border_agreed: bool
    spike: str = ""
    is_left_out: bool = False

    @classmethod
    def of_sums(
        cls, step: int, tail: Sequence[float], *, squares: Callable[[], float], lr: float
    ) -> "StepResult":
        """From what is known of all shares together.

        Args:
            step: Its number.
            tail: What travels behind the gradients, added up.
            squares: The sum of the squares of all gradients, before they are divided; asked for if there are targets.
            lr: Of the step.
        """
        targets = round(tail[NUM_TARGETS])
        loss = tail[LOSS_SUM] / targets if targets > 0 else None
        norm = math.sqrt(squares()) / targets if targets > 0 else None
        return cls(
            step=step,
            loss=loss,
            grad_norm=norm,
            lr=lr,
            targets=targets,
            is_applied=loss is not None and norm is not None and math.isfinite(norm) and math.isfinite(loss),
            stop_agreed=tail[STOP_REQUESTS] > 0,
            border_agreed=tail[BORDER_REQUESTS] > 0,
        )

    @classmethod
    def told_by(cls, source: int, group: Group, own: "StepResult | None") -> "StepResult | None":
        """What came out of the newest step of one rank, for all; None if it has seen none. In words ``spike`` does not travel.

        Args:
            source: That tells.
            group: All that hear it; every one calls this.
            own: Of this rank.
        """
        numbers = torch.tensor(own._numbers() if own else [-1.0] * len(_NUMBERS), dtype=torch.float64)
        group.broadcast(numbers, source=source)
        if group.rank == source:
            return own
        told = dict(zip(_NUMBERS, numbers.tolist(), strict=True))
        if told["step"] < 0:
            return None
        has_targets = told["targets"] > 0
        return cls(
            step=round(told["step"]),
            loss=told["loss"] if has_targets else None,
            grad_norm=told["grad_norm"] if has_targets else None,
            lr=told["lr"],
            targets=round(told["targets"]),
            **{name: told[name] > 0 for name in _FLAGS},
        )

    def _numbers(self) -> list[float]:
        """In the order of ``_NUMBERS``; without targets there is neither loss nor norm."""
        return [float(getattr(self, name) or 0) for name in _NUMBERS]


_FLAGS = ("is_applied", "stop_agreed", "border_agreed", "is_left_out")
_NUMBERS = ("step", "loss", "grad_norm", "lr", "targets", *_FLAGS)


class StepRunner:
    """Runs steps on one rank. ``enter`` an epoch first; an exception from ``run`` leaves gradients for the next epoch.

    Args:
        model: What ``run`` answers with; None if whoever drives ``ask`` answers.
        load: Microbatches of a share of a step: (step, first sample inside the batch, samples).
        learning_rate: The rate of a step.
        tell: Is told of what people want to see, with its kind and fields.
    """

    def __init__(
        self,
        *,
        rules: StepRules,
        model: Model | None,
        state: FlatState,
        optimizer: Optimizer,
        keyed: KeyedRandom,
        load: Callable[[int, int, int], Sequence[Any]],
        learning_rate: Callable[[int], float],
        recorder: Recorder,
        faults: Faults,
        watch: Watch,
        tell: Callable[[str, dict[str, Any]], None] = lambda kind, fields: None,
    ) -> None:
        self._rules, self._model, self._state, self._optimizer = rules, model, state, optimizer
        self._keyed, self._load, self._learning_rate = keyed, load, learning_rate
        self._recorder, self._faults, self._watch = recorder, faults, watch
        self._length = state.num_elements + TAIL
        self._capacity = leaf_capacity(self._length, rules.max_devices)
        self._gradients = torch.empty(state.num_elements, dtype=torch.float32, device=state.parameters.device)
        self._leaves: dict[int, Tensor] = {}
        self._free: list[Tensor] = []
        self._flight = -1
        self._group: Group | None = None
        self._sum: ShareSum | None = None
        self._first_owners: tuple[int, ...] = ()
        self._recovering = False
        self._share_began_s = 0.0
        self._applied: deque[StepResult] = deque(maxlen=max(MAX_NORMS, rules.spikes.window))
        self._balancer = Balancer(
            num_shares=rules.num_shares,
            every=rules.balance_every,
            watch=watch,
            tell=tell,
            prior_s=rules.prior_share_s,
        )
        self._prober = Prober(
            rules.probe,
            seed=rules.seed,
            num_shares=rules.num_shares,
            num_elements=state.num_elements + NUM_TARGETS + 1,
            compute=self._compute_again,
            release=self._free.append,
            recorder=recorder,
            watch=watch,
        )
        self.work = Work()

    def held(self, step: int) -> tuple[int, ...]:
        """The shares of ``step`` whose gradients this rank keeps."""
        if self._flight != step or self._rules.is_redone or self._rules.num_shares == 0:
            return ()
        return tuple(sorted(self._leaves))

    def enter(self, group: Group, *, step: int, owners: Sequence[int]) -> None:
        """Take part in an epoch that begins with ``step``, in which ``owners`` holds."""
        self._group = group
        self._first_owners = tuple(owners)
        self._recovering = self._flight == step and bool(self.held(step))
        if self._rules.num_shares:
            self._balancer.enter(group.members, step)
            self._sum = ShareSum(
                num_shares=self._rules.num_shares,
                length=self._length,
                capacity=self._capacity,
                group=group,
                device=self._state.parameters.device,
            )

    def rewind(self, step: int) -> None:
        """The state is that of before ``step`` again: what was seen of this step and later ones is over."""
        self._recycle()
        while self._applied and self._applied[-1].step >= step:
            self._applied.pop()

    def forget(self) -> None:
        """Keep no gradients, nor the memory that they lay in: nobody knows what of it is right.

        What lies between parameters in a leaf is zero from its first day, and is never written again.
        """
        self._leaves.clear()
        self._free.clear()

    def leave(self) -> None:
        """Let go of the epoch; buffers that its collectives may still touch go with it."""
        if self._group is not None:
            self._group.drop()
        self._group = self._sum = None
        if self._rules.num_shares == 0:
            self._leaves.clear()

    def run(self, step: int, requests: Requests) -> StepResult:
        """Compute, reduce, guard and commit one step.

        Raises: Fenced, CollectiveError (nothing is committed), or what the user's model raises.
        """
        return answered(self.ask(step, requests), self.answer)

    def answer(self, microbatch: Microbatch) -> Computed:
        """The gradients of one microbatch, by the model."""
        assert self._model is not None
        tokens, targets = microbatch
        loss, count = self._model.loss_sum(tokens, targets)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return Computed(loss_sum=loss.detach(), targets=count, tokens=tokens.numel())

    def ask(self, step: int, requests: Requests) -> Asking[StepResult]:
        """``run``, with each microbatch of this rank's shares handed to whoever drives, who sends what it gave."""
        assert self._group is not None
        self.work = Work()
        if self._flight != step:
            self._recycle()
            self._flight = step
        owners = self._owners(step)
        self._faults.flip(self._state.parameters, step, of=PARAMETER)
        self._prober.compare(step, self._state.parameters, self._group)
        yield from self._compute_shares(step, owners)
        if self._prober.is_on:
            yield from self._prober.probe_some(step, owners, self._leaves, self._group)
        for position, wanted in self._wishes(requests):
            self._request(position, wanted)
        total = self._reduce(step, owners)
        self._watch.enter(Phase.APPLY, step)
        result = self._outcome(step, total)
        if self._prober.is_on and (why := self._suspicion(result, total)):
            yield from self._prober.probe_all(step, owners, self._leaves, self._group, reason=why)
        self._commit(step, total, result)
        self._recovering = False
        self._first_owners = ()
        return result

    def _owners(self, step: int) -> tuple[int, ...]:
        assert self._group is not None
        if self._first_owners:
            return self._first_owners
        if self._rules.num_shares:
            with self._recorder.within(
                Clock.PROBE
            ):  # every few steps all tell each other how long a share takes
                return self._balancer.owners(step, self._group)
        return assign_shares(self._group.size, self._group.members)

    def _compute_shares(self, step: int, owners: Sequence[int]) -> Asking[None]:
        assert self._group is not None
        mine = shares_of(self._group.rank, owners)
        for share in [s for s in self._leaves if s not in mine]:
            self._free.append(self._leaves.pop(share))
        self._watch.enter(Phase.COMPUTE, step)
        for share in mine:
            if share in self._leaves:
                self.work.reused.append(share)
                continue
            with self._recorder.within(Clock.DEGRADED if self._recovering else Clock.COMPUTE):
                self._leaves[share] = yield from self._compute_share(step, share)
            with self._recorder.within(Clock.HOST_WAIT):
                self.work.computed.append(share)
                if self._recovering:
                    self.work.recovered.append(share)
                self._recorder.event("share", step=step, share=share)

    def _compute_share(self, step: int, share: int) -> Asking[Tensor]:
        leaf = yield from self._gradients_of(step, share)
        self._faults.slow_down(step, time.perf_counter() - self._share_began_s)
        self._faults.in_timer(Clock.COMPUTE, step)
        self._balancer.note(time.perf_counter() - self._share_began_s)
        self._faults.at_phase(Phase.COMPUTE, step)
        if self._faults.poisons(step):
            leaf[:1].fill_(math.nan)
        self._faults.flip(leaf[: self._state.num_elements], step, of=GRADIENT)
        return leaf

    def _compute_again(self, step: int, share: int) -> Asking[Tensor]:
        """A share that was computed already, for comparison: no planted fault strikes it, and no work is counted."""
        tokens, targets = self.work.tokens, self.work.targets
        leaf = yield from self._gradients_of(step, share)
        self.work.tokens, self.work.targets = tokens, targets
        return leaf

    def _gradients_of(self, step: int, share: int) -> Asking[Tensor]:
        leaf = self._free.pop() if self._free else self._new_leaf()
        tail = leaf[self._state.num_elements : self._length]
        tail.zero_()
        self._state.drop_gradients()
        if self._model is not None:
            self._model.begin_share()
        num_parts = self._rules.num_shares or self._group_size()
        first, end = part_of(self._rules.batch, num_parts, share)
        outer = self._recorder.switch(Clock.INPUT_WAIT)
        microbatches = self._load(step, first, end - first)
        self._faults.in_timer(Clock.INPUT_WAIT, step)
        self._recorder.switch(outer)
        self._share_began_s = time.perf_counter()
        for number, microbatch in enumerate(microbatches):
            self._watch.move()
            self._watch.raise_if_fenced()
            self._keyed.start_microbatch(seed=self._rules.seed, step=step, share=share, microbatch=number)
            computed = yield microbatch
            assert computed is not None
            if number == 0:
                self._state.move_gradients_to(leaf)
            tail[LOSS_SUM] += computed.loss_sum
            tail[NUM_TARGETS] += computed.targets
            self.work.tokens += computed.tokens
            self.work.targets += computed.targets
        if self._model is not None:
            self._model.end_share()
        return leaf

    def _wishes(self, requests: Requests) -> Iterator[tuple[int, float]]:
        """What this rank says behind its gradients: what it wants, and as the lead what it takes for ordinary."""
        assert self._group is not None
        yield STOP_REQUESTS, requests.stop
        yield BORDER_REQUESTS, requests.border
        yield SKIP_REQUESTS, requests.skip
        is_lead = self._group.rank == self._group.members[0]
        losses = [result.loss for result in self._applied if result.loss is not None]
        norms = [result.grad_norm for result in self._applied if result.grad_norm is not None]
        calm = (
            spike_limits(losses, norms, self._rules.spikes) if is_lead else SpikeLimits(loss=0, grad_norm=0)
        )
        yield NORM_LIMIT, suspicious_norm(norms) if is_lead and self._prober.is_on else 0.0
        yield SPIKE_LOSS, calm.loss
        yield SPIKE_NORM, calm.grad_norm

    def _suspicion(self, result: StepResult, total: Tensor) -> str:
        """Why the shares of a step are looked at again before it is applied; empty if there is no reason."""
        limit = float(total[self._state.num_elements + NORM_LIMIT])
        norm = result.grad_norm
        if norm is None or (math.isfinite(norm) and norm <= limit):
            return ""
        return f"the gradient norm is {norm:.3g}, and at most {limit:.3g} was expected"

    def _request(self, position: int, wanted: float) -> None:
        """Write a request into the first own leaf's tail, and take back what an earlier try wrote."""
        for number, share in enumerate(sorted(self._leaves)):
            self._leaves[share][self._state.num_elements + position] = float(wanted) if number == 0 else 0.0

    def _reduce(self, step: int, owners: Sequence[int]) -> Tensor:
        assert self._group is not None
        if self._sum is None:
            total = self._leaves[self._group.members.index(self._group.rank)][: self._length]
            self._collect("all_reduce", Phase.REDUCE, step, lambda: self._all_reduce(total, step))
            return total
        share_sum = self._sum
        pieces: list[Tensor] = []

        def reduce() -> None:
            pieces.append(
                share_sum.reduce(self._leaves, owners, lambda: self._faults.at_phase(Phase.REDUCE, step))
            )

        def gather() -> None:
            piece = pieces.pop()
            pieces.append(share_sum.gather(piece, lambda: self._faults.at_phase(Phase.GATHER, step)))

        self._collect("reduce_scatter", Phase.REDUCE, step, reduce)
        self._collect("all_gather", Phase.GATHER, step, gather)
        return pieces.pop()[: self._length]

    def _all_reduce(self, total: Tensor, step: int) -> None:
        assert self._group is not None
        self._group.all_reduce(total, launched=lambda: self._faults.at_phase(Phase.REDUCE, step))

    def _collect(self, name: str, phase: Phase, step: int, call: Callable[[], None]) -> None:
        """Run one collective with its clock, its phase, and its wait on record."""
        self._watch.enter(phase, step)
        outer = self._recorder.switch(Clock.COMM)
        started_ns = time.monotonic_ns()
        with self._watch.waiting(name):
            call()
        ended_ns = time.monotonic_ns()
        self._recorder.switch(outer, at_ns=ended_ns)
        self.work.waits.append((name, ended_ns - started_ns))
        if self._group is not None:
            self.work.sent_bytes += self._group.tally.taken()

    def _outcome(self, step: int, total: Tensor) -> StepResult:
        """What all shares together give, before anything is changed by it."""
        length = self._state.num_elements
        tail = total[length : self._length].tolist()
        with self._recorder.within(Clock.COMPUTE):
            result = StepResult.of_sums(
                step,
                tail,
                squares=lambda: sum_of_squares(total[:length]),
                lr=self._learning_rate(step),
            )
        return judged(result, tail, self._rules.spikes)

    def _commit(self, step: int, total: Tensor, result: StepResult) -> None:
        self._faults.at_phase(Phase.APPLY, step)
        if not result.is_applied or result.grad_norm is None:
            return
        with self._recorder.within(Clock.COMPUTE):
            scale = scale_of(result.targets, result.grad_norm, self._rules.clip)
            torch.mul(total[: self._state.num_elements], scale, out=self._gradients)
            self._optimizer.step(self._state.groups(self._gradients), lr=result.lr)
        self._applied.append(result)

    def _recycle(self) -> None:
        self._free += self._leaves.values()
        self._leaves.clear()

    def _new_leaf(self) -> Tensor:
        return torch.zeros(self._capacity, dtype=torch.float32, device=self._state.parameters.device)

    def _group_size(self) -> int:
        assert self._group is not None
        return self._group.size


def judged(result: StepResult, tail: Sequence[float], rules: SpikeRules) -> StepResult:
    """The result with what all agreed on about it: whether it is a spike, and whether it is applied all the same."""
    if tail[SKIP_REQUESTS] > 0:
        return replace(result, is_applied=False, is_left_out=True)
    if not result.is_applied or result.loss is None or result.grad_norm is None:
        return result
    limits = SpikeLimits(loss=tail[SPIKE_LOSS], grad_norm=tail[SPIKE_NORM])
    spike = "" if rules.answer is SpikeAnswer.OFF else spike_reason(result.loss, result.grad_norm, limits)
    is_applied = not spike or rules.answer is SpikeAnswer.MARK
    return replace(result, spike=spike, is_applied=is_applied)


def scale_of(targets: int, norm: float, clip: float | None) -> float:
    """One factor that turns the sum of gradients into the clipped mean."""
    if clip is None or norm <= clip:
        return 1.0 / targets
    return clip / norm / targets


def part_of(batch: int, num_parts: int, part: int) -> tuple[int, int]:
    """Samples of one part of the batch: contiguous, the first parts one sample more.

    >>> [part_of(8, 3, i) for i in range(3)]
    [(0, 3), (3, 6), (6, 8)]
    """
    each, more = divmod(batch, num_parts)
    first = part * each + min(part, more)
    return first, first + each + (part < more)
