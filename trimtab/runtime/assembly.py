"""Puts one rank together from its ticket: job, data, model, state, optimizer, trainer."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.plan import network_of
from trimtab.policy.wire import Note
from trimtab.runtime.agent_link import Link
from trimtab.runtime.checkpoint.store import newest_complete
from trimtab.runtime.data import Corpus, open_corpus
from trimtab.runtime.data.cache import TOKENS_FOLDER
from trimtab.runtime.devices import device_kind, fingerprint, peak_flops_per_s, prepare, torch_device
from trimtab.runtime.evaluation import Evaluator
from trimtab.runtime.faults import Faults
from trimtab.runtime.flat_state import FlatState
from trimtab.runtime.keeping import Keeper, KeepingRules
from trimtab.runtime.lr_schedules import SCHEDULES, learning_rate
from trimtab.runtime.models import Model, build_model
from trimtab.runtime.optimizers import OPTIMIZERS, FlatOptimizer, build_optimizer
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.step import Microbatch, StepRules, StepRunner
from trimtab.runtime.trainer import Trainer, TrainerRules
from trimtab.runtime.watch import LinkWatch
from trimtab.runtime.weights.jobs import check_job_weights
from trimtab.runtime.weights.reading import FolderWeights, Weights
from trimtab.spec import Injection, Job
from trimtab.terms import InputError, OnLoss


def assemble(ticket: Mapping[str, Any], recorder: Recorder, link: Link) -> Trainer:
    """The trainer of one rank, with its state as far as this process can know it."""
    settings = ticket["settings"]
    job = Job.model_validate(settings["job"])
    kind = device_kind()
    threads = job.orchestration.threads
    prepare(kind, threads)
    link.start(fingerprint(kind, threads))
    folder = Path(ticket["folder"])
    device = torch_device(kind, ticket["rank"])
    watch = LinkWatch(link)
    corpus = open_job_corpus(job, folder, watch)
    keyed = KeyedRandom(device)
    is_begun = newest_complete(folder / "checkpoints").folder is not None
    model = build_job_model(job, corpus, keyed, weights=None if is_begun else open_job_weights(job))
    model.module.to(device)
    state = FlatState(model.logical_parameters())
    optimizer = build_job_optimizer(job, state)
    faults = Faults(
        [Injection.from_json(values) for values in settings["injections"]],
        rank=ticket["rank"],
        folder=folder,
        announce=lambda fields: link.send(Note(kind="planted", t_ns=time.monotonic_ns(), fields=fields)),
    )
    num_shares = 0 if job.fault_tolerance.shares == "off" else int(job.fault_tolerance.shares)
    num_steps = count_steps(job, corpus)
    runner = StepRunner(
        rules=StepRules(
            num_shares=num_shares,
            batch=job.train.batch,
            seed=job.train.seed,
            clip=None if job.train.clip == "off" else float(job.train.clip),
            max_devices=job.orchestration.devices,
            is_redone=job.fault_tolerance.on_loss in (OnLoss.REDO, OnLoss.SAME_BATCH, OnLoss.ROLLBACK),
        ),
        model=model,
        state=state,
        optimizer=optimizer,
        keyed=keyed,
        load=microbatch_loader(job, corpus, device),
        learning_rate=rate_of(job, num_steps),
        recorder=recorder,
        faults=faults,
        watch=watch,
    )
    keeper = Keeper(
        folder / "checkpoints",
        rules=KeepingRules(
            every=job.fault_tolerance.checkpoint.every,
            keep=job.fault_tolerance.checkpoint.keep,
            keeps_best=job.fault_tolerance.checkpoint.keep_best,
            batch=job.train.batch,
            seed=job.train.seed,
            identity={"data": corpus.digest},
        ),
        state=state,
        optimizer=optimizer,
        recorder=recorder,
        faults=faults,
        watch=watch,
        tell=teller(recorder, link),
    )
    recorder.event("peak", flops_per_s=peak_flops_per_s(kind, threads))
    return Trainer(
        rules=TrainerRules(
            num_steps=num_steps,
            evaluate_every=job.train.evaluate.every,
            tokens_per_step=job.train.batch * job.data.sequence,
            flops_per_token=flops_per_token(job, model),
            device_kind=kind,
            on_nonfinite=job.train.on_nonfinite,
            rolls_back_on_loss=job.fault_tolerance.on_loss is OnLoss.ROLLBACK,
            unigram_entropy=corpus.held_out_entropy(),
        ),
        rank=ticket["rank"],
        committed=keeper.load_newest(),
        link=link,
        watch=watch,
        runner=runner,
        evaluator=build_evaluator(job, corpus, model, link, watch, device),
        state=state,
        optimizer=optimizer,
        keeper=keeper,
        recorder=recorder,
        faults=faults,
    )


def teller(recorder: Recorder, link: Link) -> Callable[[str, dict[str, Any]], None]:
    """Writes an event into the rank's journal and tells the agent."""

    def tell(kind: str, fields: dict[str, Any]) -> None:
        recorder.event(kind, **fields)
        link.send(Note(kind=kind, t_ns=time.monotonic_ns(), fields=fields))

    return tell


def open_job_corpus(job: Job, folder: Path, watch: LinkWatch) -> Corpus:
    """The job's corpus; its token cache is the job's, else one beside the run's folder that its siblings share."""
    tokenizer = job.data.tokenizer
    return open_corpus(
        text=job.data.text,
        field=job.data.field,
        tokenizer=tokenizer if isinstance(tokenizer, str) else tokenizer.model_dump(),
        sequence=job.data.sequence,
        held_out=job.data.held_out,
        packing=job.data.packing.value,
        seed=job.train.seed,
        cache_folder=Path(job.data.cache) if job.data.cache else folder.parent / TOKENS_FOLDER,
        on_progress=lambda _: watch.move(),
        on_wait=lambda _: watch.move(),
    )


def open_job_weights(job: Job) -> Weights | None:
    """The weights that the job begins with; None for random ones.

    Raises: WeightsError if the folder that it names does not hold them.
    """
    checked = check_job_weights(job)
    return FolderWeights(checked) if checked is not None else None


def build_job_model(job: Job, corpus: Corpus, keyed: KeyedRandom, *, weights: Weights | None = None) -> Model:
    """The job's model with its initial values, random ones unless weights are given.

    Raises: InputError if the text has more tokens than the network's vocabulary, or samples longer than its context.
    """
    source = network_of(job)
    if source is not None and corpus.vocab_size > source.vocab:
        raise InputError(
            f"the tokenizer has {corpus.vocab_size} tokens, {source.name} has room for {source.vocab}; "
            f"set model.vocab: {corpus.vocab_size}"
        )
    return build_model(
        source or str(job.model.module),
        arguments=job.model.args,
        seed=job.train.seed,
        keyed=keyed,
        compute=job.train.compute,
        is_cut_into_shares=job.fault_tolerance.shares != "off",
        weights=weights,
    )


def build_job_optimizer(job: Job, state: FlatState) -> FlatOptimizer:
    """The job's optimizer over the flat state."""
    chosen = job.train.optimizer
    decayed, others = state.groups(state.parameters)
    return build_optimizer(
        OPTIMIZERS[chosen.name](**chosen.chosen.model_dump()), decayed=[decayed], undecayed=[others]
    )


def rate_of(job: Job, num_steps: int) -> Callable[[int], float]:
    """The job's learning rate as a function of the step."""
    chosen = job.train.lr_schedule
    schedule = SCHEDULES[chosen.name](**chosen.chosen.model_dump())
    peak = float(job.train.optimizer.chosen.model_dump()["lr"])
    return lambda step: learning_rate(schedule, step=step, num_steps=num_steps, peak=peak)


def count_steps(job: Job, corpus: Corpus) -> int:
    """Steps of the whole run: as written, or what the epochs of this corpus need."""
    if job.train.steps is not None:
        return job.train.steps
    assert job.train.epochs is not None
    return corpus.index.num_steps(job.train.epochs, job.train.batch)


def microbatch_loader(
    job: Job, corpus: Corpus, device: torch.device
) -> Callable[[int, int, int], list[Microbatch]]:
    """Microbatches of a part of a step, from the part's first sample inside the batch and its number of samples."""
    size = int(job.train.microbatch)
    limit = corpus.index.num_positions(job.train.epochs) if job.train.epochs is not None else None

    def load(step: int, first: int, count: int) -> list[Microbatch]:
        tokens, targets = corpus.batch(step * job.train.batch + first, count, limit)
        pieces = [torch.split(torch.from_numpy(part).to(device), size) for part in (tokens, targets)]
        return list(zip(*pieces, strict=True))

    return load


def flops_per_token(job: Job, model: Model) -> float:
    """Forward and backward model FLOPs of one token.

    A network of the catalog: its matrix products, causal attention. A user's class: 6 per parameter (Kaplan et al.
    2020), which leaves attention out.
    """
    source = network_of(job)
    if source is not None:
        return float(source.flops_per_token(job.data.sequence, causal=True))
    return 6.0 * sum(parameter.numel() for _, parameter in model.logical_parameters())


def build_evaluator(
    job: Job, corpus: Corpus, model: Model, link: Link, watch: LinkWatch, device: torch.device
) -> Evaluator | None:
    """The scorer of the first held-out batches; None if nothing is held out."""
    if not corpus.num_held_out:
        return None
    size = min(int(job.train.microbatch), job.train.batch)
    num_samples = min(corpus.num_held_out, job.train.evaluate.batches * job.train.batch)
    batches: list[tuple[Tensor, Tensor]] = []
    for start in range(0, num_samples, size):
        tokens, targets = corpus.held_out_batch(start, min(size, num_samples - start))
        batches.append((torch.from_numpy(tokens).to(device), torch.from_numpy(targets).to(device)))
    return Evaluator(model=model, batches=batches, watch=watch, is_cut_short=lambda: link.is_stop_wanted)
