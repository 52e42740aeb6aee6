"""Puts a rank together around a user's own model and optimizer."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.runtime.agent_link import Link
from trimtab.runtime.assembly import faults_of, teller
from trimtab.runtime.devices import device_kind, fingerprint, prepare
from trimtab.runtime.enlisting import Enlistment
from trimtab.runtime.flat_state import FlatState
from trimtab.runtime.job_rules import keeping_rules, keyring_of, spike_rules, step_rules
from trimtab.runtime.keeping import Keeper
from trimtab.runtime.optimizers import Optimizer
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.run_state import ReplicatedState
from trimtab.runtime.step import StepRunner
from trimtab.runtime.trainer import Trainer, TrainerRules
from trimtab.runtime.watch import LinkWatch
from trimtab.spec import Job
from trimtab.spec.constants import rule_of
from trimtab.terms import Clock, InputError, OnLoss

_INITIAL_WEIGHTS = "initial weights (torch.manual_seed makes them equal)"
"""In the fingerprint: ranks that begin with different weights would train different models."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Microbatch:
    """Samples to compute at once: their global positions, and the number of the microbatch inside its share."""

    positions: range
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptedRun:
    """A rank whose trainer somebody else drives.

    Args:
        is_exact: Whether the batch is cut into shares.
        trainer: Its questions are a StepBegins or a Microbatch.
    """

    rank: int
    num_steps: int
    seed: int
    is_exact: bool
    link: Link
    recorder: Recorder
    watch: LinkWatch
    trainer: Trainer


def assemble(
    enlistment: Enlistment,
    job: Job,
    *,
    state: FlatState,
    optimizer: Optimizer,
    rate: Callable[[], float],
) -> AdoptedRun:
    """Report to the agent, and make the trainer of this rank, with the newest checkpoint loaded.

    Args:
        enlistment: How this process is a rank.
        job: Of the run.
        state: Over the user's parameters, with their initial values.
        optimizer: Over the same.
        rate: The learning rate of the step that is about to be committed.

    Raises: InputError if the job does not say how many steps there are; RankError for another run's checkpoint.
    """
    if job.train.steps is None:
        raise InputError(
            "the job does not say how long to train; set train.steps, as by --set train.steps=100"
        )
    recorder, ticket = enlistment.recorder, enlistment.ticket
    recorder.switch(Clock.RESTART, at_ns=enlistment.started_ns)
    device = state.parameters.device
    kind = "cpu" if device.type == "cpu" else device_kind()
    prepare(kind, job.orchestration.threads)
    link = enlistment.connect(
        {**fingerprint(kind, job.orchestration.threads), _INITIAL_WEIGHTS: _digest(state)}
    )
    watch = LinkWatch(link)
    folder = Path(ticket["folder"])
    faults = faults_of(ticket, link)
    runner = StepRunner(
        rules=step_rules(job),
        model=None,
        state=state,
        optimizer=optimizer,
        keyed=KeyedRandom(device),
        load=_positions_of(job),
        learning_rate=lambda _: rate(),
        recorder=recorder,
        faults=faults,
        watch=watch,
        tell=teller(recorder, link),
    )
    run_state = ReplicatedState(state, optimizer)
    keeper = Keeper(
        folder,
        rules=keeping_rules(job, folder, keeps_best=False, identity={}, keys=keyring_of(job, folder)),
        is_first=ticket["rank"] == 0,
        state=run_state,
        recorder=recorder,
        faults=faults,
        watch=watch,
        tell=teller(recorder, link),
    )
    trainer = Trainer(
        rules=TrainerRules(
            num_steps=job.train.steps,
            evaluate_every=0,
            tokens_per_step=None,
            flops_per_token=0.0,
            device_kind=kind,
            on_nonfinite=job.train.on_nonfinite,
            rolls_back_on_loss=rule_of(job, is_replicated=True) is OnLoss.ROLLBACK,
            spikes=spike_rules(job),
            compare_every=step_rules(job).probe.compare_every,
            digest_every=job.fault_tolerance.digest_every,
        ),
        rank=ticket["rank"],
        committed=keeper.load(),
        link=link,
        watch=watch,
        runner=runner,
        evaluator=None,
        state=run_state,
        keeper=keeper,
        recorder=recorder,
        faults=faults,
    )
    return AdoptedRun(
        rank=ticket["rank"],
        num_steps=job.train.steps,
        seed=job.train.seed,
        is_exact=job.fault_tolerance.shares != "off",
        link=link,
        recorder=recorder,
        watch=watch,
        trainer=trainer,
    )


def _digest(state: FlatState) -> str:
    """Names the values of all parameters."""
    elements: Any = state.parameters.detach().to("cpu").numpy()
    return hashlib.sha256(memoryview(elements).cast("B")).hexdigest()[:16]


def _positions_of(job: Job) -> Callable[[int, int, int], list[Microbatch]]:
    """The microbatches of a part of a step, from the part's first sample inside the batch and its number of samples."""
    size = int(job.train.microbatch)

    def load(step: int, first: int, count: int) -> list[Microbatch]:
        begin = step * job.train.batch + first
        starts = range(begin, begin + count, size)
        return [
            Microbatch(positions=range(start, min(start + size, begin + count)), number=number)
            for number, start in enumerate(starts)
        ]

    return load
