"""Is a parallel run the same computation as one device? Runs both and compares them, tensor by tensor."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trimtab.plan.physical import Plan
from trimtab.runtime.decoder import IGNORED_TARGET
from trimtab.runtime.lowering.accounting import unplanned
from trimtab.runtime.lowering.batches import Microbatch, microbatches_of
from trimtab.runtime.lowering.comparing import (
    TOLERANCE,
    ZERO,
    Compared,
    Comparison,
    Divergence,
)
from trimtab.runtime.lowering.crew import Crew
from trimtab.runtime.lowering.diagnosis import root_mean_square
from trimtab.runtime.lowering.exactness import exact, set_aside
from trimtab.runtime.lowering.extents import Layouts
from trimtab.runtime.lowering.numbers import Numbers, comes_before
from trimtab.runtime.lowering.observing import Array, Recorder, Seen, by_tensor, weights_after
from trimtab.runtime.lowering.rank import Rank
from trimtab.runtime.lowering.references import DecoderDevice, Meeting, OneDevice
from trimtab.runtime.lowering.replicas import Replica, regions_of, replicas_of
from trimtab.runtime.lowering.updating import Outcome, Rules
from trimtab.runtime.lowering.wires import Count, Sent, Wires
from trimtab.runtime.optimizers import OPTIMIZERS, AdamW, OptimizerSettings
from trimtab.spec import Job

_EPSILON = 1e-3
"""AdamW's epsilon while verifying. Adam divides a gradient by its own size: an element that is rounding and nothing
else would move by a full step, and two right runs would part. Below this size a gradient moves weights in proportion."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is verified.

    Args:
        plan: To be run, as it stands; the types that it asks for are set aside.
        optimizer: Its settings.
        clip: Largest gradient norm; None for no clipping.
        seed: Of weights and tokens.
        steps: To take.
    """

    plan: Plan
    optimizer: OptimizerSettings
    clip: float | None
    seed: int
    steps: int


def question_of(job: Job, plan: Plan, *, steps: int) -> Question:
    """What ``verify`` asks of a job whose plan is known."""
    chosen = job.train.optimizer
    return Question(
        plan=plan,
        optimizer=OPTIMIZERS[chosen.name](**chosen.chosen.model_dump()),
        clip=None if job.train.clip == "off" else float(job.train.clip),
        seed=job.train.seed,
        steps=steps,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The answer.

    Args:
        divergence: The first tensor that differs; None if all are equal.
        num_tensors: Compared.
        num_diverged: That differ.
        largest_error: Of those that are equal, as a part of their size.
        num_parameters: Whose gradients and weights are among them.
        steps: Taken.
        losses: Of the parallel run, by step: the first replica's where several train apart.
        norms: The same.
        sent_bytes: By all ranks in all steps.
        unplanned: Where bytes or runs of a collective are not those of the plan's traffic, in a sentence each.
        set_aside: Roundings of the plan that were left out.
        is_checked_by_decoder: Whether the one device was itself compared with the decoder.
    """

    divergence: Divergence | None
    num_tensors: int
    num_diverged: int
    largest_error: float
    num_parameters: int
    steps: int
    losses: tuple[float | None, ...]
    norms: tuple[float | None, ...]
    sent_bytes: int
    unplanned: tuple[str, ...]
    set_aside: tuple[str, ...]
    is_checked_by_decoder: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Order:
    """What a rank is told to run."""

    plan: Plan
    rules: Rules
    seed: int
    batches: Sequence[tuple[Microbatch, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRun:
    """What a rank saw, what came out by step, and what it sent in all of them."""

    seen: list[Seen]
    outcomes: list[Outcome]
    counts: Mapping[Sent, Count]


def verify(question: Question, crew: Crew) -> Verdict:
    """Run a plan on a crew of as many ranks as its mesh has, and compare it with one device.

    Raises: CrewError if a rank fails.
    """
    plan = exact(question.plan)
    rules = Rules(
        optimizer=_tamed(question.optimizer), learning_rate=Rate(question.optimizer.lr), clip=question.clip
    )
    batches = [
        microbatches_of(plan.work, *ragged_batch(plan, question.seed, step)) for step in range(question.steps)
    ]
    order = _Order(plan=plan, rules=rules, seed=question.seed, batches=batches)
    runs = crew.run(run_rank, order)
    with _one_thread():
        return _judged(question, order, runs)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Ranks compute on one thread each, and so does the one device; small products on several wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def ragged_batch(plan: Plan, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Random tokens and targets of a step; in every sample another number of targets is masked, a quarter on average."""
    work = plan.work
    chance = torch.Generator().manual_seed(seed * 1_000_003 + step)
    shape = (work.batch, work.sequence)
    tokens, targets = (torch.randint(0, plan.network.vocab, shape, generator=chance) for _ in range(2))
    share = torch.rand((work.batch, 1), generator=chance) / 2
    masked = torch.rand(shape, generator=chance) < share
    masked[0, 0] = False  # A step without any target is skipped: nothing would be compared.
    return tokens, targets.masked_fill(masked, IGNORED_TARGET)


def run_rank(wires: Wires, order: _Order) -> RankRun:
    """A rank's part of the parallel run."""
    recorder = Recorder(order.plan, order.plan.work.microbatches - 1)
    wires.counts.clear()
    rank = Rank(order.plan, wires.rank, wires, order.rules, seed=order.seed, observe=recorder)
    outcomes = []
    for number, microbatches in enumerate(order.batches):
        recorder.step = number
        outcomes.append(rank.step(microbatches, number))
    return RankRun(seen=recorder.seen, outcomes=outcomes, counts=dict(wires.counts))


@dataclass(frozen=True, slots=True)
class Rate:
    """A learning rate that is another one in every step, so that a schedule which ticks too often shows."""

    lr: float

    def __call__(self, step: int) -> float:
        return self.lr * 0.75**step


def _tamed(settings: OptimizerSettings) -> OptimizerSettings:
    return replace(settings, eps=max(settings.eps, _EPSILON)) if isinstance(settings, AdamW) else settings


def _judged(question: Question, order: _Order, runs: Sequence[RankRun]) -> Verdict:
    plan = order.plan
    layouts = Layouts(plan.mesh)
    replicas = replicas_of(plan, layouts)
    devices = _devices(order, layouts, replicas)
    compared: list[Compared] = []
    for replica, whole in zip(replicas, devices.tensors, strict=True):
        comparison = Comparison(plan, layouts, replicas, replica, whole, order.rules.learning_rate)
        compared.append(comparison.compare({rank: runs[rank].seen for rank in replica.ranks}))
    first = devices.divergence or next((found.first for found in compared if found.first), None)
    numbers = Numbers(plan, layouts)
    for replica, expected in zip(replicas, devices.outcomes, strict=True):
        wrong = numbers.divergence({rank: runs[rank].outcomes for rank in replica.ranks}, expected)
        if wrong is not None and devices.divergence is None and comes_before(wrong, first):
            first = wrong
    outcomes = _known(runs, replicas[0].ranks)
    return Verdict(
        divergence=first,
        num_tensors=sum(found.num_tensors for found in compared),
        num_diverged=sum(found.num_diverged for found in compared),
        largest_error=max(found.largest_error for found in compared),
        num_parameters=len(plan.parameters),
        steps=question.steps,
        losses=tuple(outcome.loss for outcome in outcomes),
        norms=tuple(outcome.norm for outcome in outcomes),
        sent_bytes=sum(count.sent_bytes for run in runs for count in run.counts.values()),
        unplanned=tuple(unplanned(plan, [run.counts for run in runs], question.steps)),
        set_aside=set_aside(question.plan),
        is_checked_by_decoder=devices.is_checked,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Devices:
    """What one device made of it, for each replica."""

    tensors: Sequence[Mapping[tuple[int, int, str], Array]]
    outcomes: Sequence[Sequence[Outcome]]
    divergence: Divergence | None
    is_checked: bool


def _devices(order: _Order, layouts: Layouts, replicas: Sequence[Replica]) -> _Devices:
    plan = order.plan
    devices = [
        OneDevice(plan, replica, order.rules, order.seed, regions_of(plan, layouts, replica))
        for replica in replicas
    ]
    is_checked = not plan.network.experts
    decoders = [
        DecoderDevice(plan.network, replica, order.rules, order.seed, plan)
        for replica in (replicas if is_checked else ())
    ]
    meeting = Meeting(plan, replicas, [device.rank.stored for device in devices])
    decoders_meet = Meeting(plan, replicas[: len(decoders)], [decoder.weights for decoder in decoders])
    weights = [_weights(device, -1) for device in devices]
    divergence = None
    for step, microbatches in enumerate(order.batches):
        for device in devices:
            device.step(microbatches, step)
        meeting.after(step, [device.rank.stored for device in devices])
        for decoder in decoders:
            decoder.step(microbatches, step)
        met = [decoder.weights for decoder in decoders]
        decoders_meet.after(step, met)
        for decoder, own in zip(decoders, met, strict=True):
            decoder.load(own)
        for found, device in zip(weights, devices, strict=True):
            found |= _weights(device, step)
        for device, decoder in zip(devices, decoders, strict=False):
            divergence = divergence or _decoder_divergence(device, decoder, step)
    tensors = []
    for device, after in zip(devices, weights, strict=True):
        whole = {key: one.array for key, one in by_tensor(device.recorder.seen).items()}
        tensors.append(whole | after)
    return _Devices(
        tensors=tensors,
        outcomes=[device.outcomes for device in devices],
        divergence=divergence,
        is_checked=is_checked,
    )


def _weights(device: OneDevice, step: int) -> dict[tuple[int, int, str], Array]:
    """Of one device after a step; those of step -1 are the initial ones."""
    return {
        (step, 0, weights_after(name)): tensor.numpy().copy() for name, tensor in device.rank.stored.items()
    }


def _decoder_divergence(device: OneDevice, decoder: DecoderDevice, step: int) -> Divergence | None:
    """Where the plan of one device is not what the decoder and autograd make; then nothing else counts."""
    flat = torch.cat([gradient.reshape(-1) for gradient in decoder.gradients[step].values()])
    floor = ZERO * root_mean_square(flat.numpy())
    for name, gradient in decoder.gradients[step].items():
        found = next(
            one.array
            for one in device.recorder.seen
            if one.step == step and one.tensor == f"gradient of {name}"
        )
        size = max(root_mean_square(gradient.numpy()), floor)
        error = root_mean_square(found - gradient.numpy()) / size
        if error > TOLERANCE:
            return _of_reference(f"gradient of {name}", step, error)
    return None


def _of_reference(tensor: str, step: int, error: float) -> Divergence:
    return Divergence(
        tensor=tensor,
        step=step,
        microbatch=None,
        error=error,
        ranks=(),
        axis=None,
        ratio=None,
        cause="the plan of one device is not what the decoder computes: a mistake of the lowering, not of the strategy",
        line=None,
    )


def _known(runs: Sequence[RankRun], ranks: Sequence[int]) -> list[Outcome]:
    """By step, what a rank of the last stage knows."""
    for rank in ranks:
        if all(outcome.loss is not None for outcome in runs[rank].outcomes):
            return runs[rank].outcomes
    return runs[ranks[0]].outcomes
