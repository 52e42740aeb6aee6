"""Puts one rank together from its ticket: job, data, model, state, optimizer, trainer."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.catalog import THIS_MACHINE, Cluster, Machine, cluster
from trimtab.plan import network_of, trains_as_replicas
from trimtab.plan.compiling import compile_program
from trimtab.plan.formations import Formations
from trimtab.plan.physical import Plan
from trimtab.plan.training import training_of
from trimtab.policy.slowness import prior_share_s
from trimtab.policy.wire import Note
from trimtab.runtime.agent_link import Link
from trimtab.runtime.built_network import refuse_another_network
from trimtab.runtime.checkpoint.keyring import Keyring
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.places import checkpoints_of
from trimtab.runtime.checkpoint.store import newest_complete
from trimtab.runtime.data import Corpus, open_corpus
from trimtab.runtime.data.cache import TOKENS_FOLDER
from trimtab.runtime.decoder import Decoder
from trimtab.runtime.devices import device_kind, fingerprint, peak_flops_per_s, prepare, torch_device
from trimtab.runtime.evaluation import Evaluator
from trimtab.runtime.faults import Faults
from trimtab.runtime.flat_state import FlatState
from trimtab.runtime.job_rules import clip_of, keeping_rules, keyring_of, spike_rules, step_rules
from trimtab.runtime.keeping import Keeper
from trimtab.runtime.laid_out import ElasticEvaluator, ElasticRunner, ElasticSeat, SeatMaker, Snapshots, Timed
from trimtab.runtime.lowering import Rules
from trimtab.runtime.lr_schedules import SCHEDULES, learning_rate
from trimtab.runtime.models import Model, build_model
from trimtab.runtime.optimizers import OPTIMIZERS, FlatOptimizer, build_optimizer
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.run_state import ReplicatedState, RunState
from trimtab.runtime.step import Microbatch, StepRunner
from trimtab.runtime.stored import StoredModule, StoredRunner, StoredState, storage_of_class
from trimtab.runtime.trainer import Runner, Scorer, Trainer, TrainerRules
from trimtab.runtime.watch import LinkWatch
from trimtab.runtime.weights.jobs import check_job_weights
from trimtab.runtime.weights.reading import FolderWeights, Weights
from trimtab.spec import Compile, Injection, Job, Program, parse_strategy, resolve_mesh
from trimtab.spec.constants import rule_of
from trimtab.terms import InputError, OnLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class Ground:
    """What both kinds of run stand on.

    Args:
        job: With every constant resolved.
        ticket: Of the rank.
        corpus: The job's.
        keys: What its checkpoints are signed with.
        device: Of the rank.
    """

    job: Job
    ticket: Mapping[str, Any]
    corpus: Corpus
    keys: Keyring
    device: torch.device
    recorder: Recorder
    link: Link
    watch: LinkWatch
    faults: Faults

    @property
    def num_steps(self) -> int:
        """Of the whole run."""
        return count_steps(self.job, self.corpus)

    def weights(self) -> Weights | None:
        """What the run begins with; None for random weights, and for a run that has a checkpoint to go on from."""
        is_begun = newest_complete(self.root, self.keys).folder is not None
        return None if is_begun else open_job_weights(self.job)

    @property
    def num_nodes(self) -> int:
        """Nodes that compute."""
        where, devices = self.cluster(), self.job.orchestration.devices
        return len({where.node_of(rank) for rank in range(min(devices, where.num_devices))})

    def prior_share_s(self) -> dict[int, float]:
        """Relative seconds a share by rank, where the cluster has devices of several kinds; else empty."""
        where, devices = self.cluster(), self.job.orchestration.devices
        if devices > where.num_devices:
            return {}
        compute = self.job.train.compute
        found = [where.nodes[where.node_of(rank)].accelerator for rank in range(devices)]
        peaks = [device.peak_flops_per_s(compute) for device in found]
        if None in peaks or len(set(peaks)) == 1:
            return {}
        return prior_share_s([peak for peak in peaks if peak is not None])

    @property
    def root(self) -> Path | ObjectPath:
        """Where the run's checkpoints are."""
        return checkpoints_of(Path(self.ticket["folder"]), self.job.fault_tolerance.checkpoint.to, Path())

    def cluster(self) -> Cluster:
        """Where the ranks stand."""
        machine = Machine(num_devices=self.job.orchestration.devices, **self.ticket["settings"]["machine"])
        return cluster(self.job.orchestration.cluster or THIS_MACHINE, machine=machine)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What a run trains, how it steps, and how it is scored."""

    state: RunState
    runner: Runner
    evaluator: Scorer | None
    flops_per_token: float


def assemble(ticket: Mapping[str, Any], recorder: Recorder, link: Link) -> Trainer:
    """The trainer of one rank, with its state as far as this process can know it."""
    settings = ticket["settings"]
    job = Job.model_validate(settings["job"])
    kind = device_kind()
    threads = job.orchestration.threads
    prepare(kind, threads)
    link.start(fingerprint(kind, threads))
    folder, watch = Path(ticket["folder"]), LinkWatch(link)
    ground = Ground(
        job=job,
        ticket=ticket,
        corpus=open_job_corpus(job, folder, watch),
        keys=keyring_of(job, folder),
        device=torch_device(kind, ticket["rank"]),
        recorder=recorder,
        link=link,
        watch=watch,
        faults=faults_of(ticket, link),
    )
    program = parse_strategy(job.parallelism.text, source="parallelism")
    trained = _trained(ground, program)
    keeper = Keeper(
        folder,
        rules=keeping_rules(
            job,
            folder,
            keeps_best=job.fault_tolerance.checkpoint.keep_best,
            identity={"data": ground.corpus.digest},
            keys=ground.keys,
            num_nodes=ground.num_nodes,
            is_replicated=trains_as_replicas(job, program),
        ),
        is_first=ticket["rank"] == 0,
        state=trained.state,
        recorder=recorder,
        faults=ground.faults,
        watch=watch,
        tell=teller(recorder, link),
    )
    recorder.event("peak", flops_per_s=peak_flops_per_s(kind, threads))
    return Trainer(
        rules=TrainerRules(
            num_steps=ground.num_steps,
            evaluate_every=job.train.evaluate.every,
            tokens_per_step=job.train.batch * job.data.sequence,
            flops_per_token=trained.flops_per_token,
            device_kind=kind,
            on_nonfinite=job.train.on_nonfinite,
            spikes=spike_rules(job),
            compare_every=step_rules(job).probe.compare_every if trains_as_replicas(job, program) else 0,
            rolls_back_on_loss=_only_checkpoints(job, program),
            digest_every=job.fault_tolerance.digest_every,
            unigram_entropy=ground.corpus.held_out_entropy(),
        ),
        rank=ticket["rank"],
        committed=keeper.load(),
        link=link,
        watch=watch,
        runner=trained.runner,
        evaluator=trained.evaluator,
        state=trained.state,
        keeper=keeper,
        recorder=recorder,
        faults=ground.faults,
    )


def _only_checkpoints(job: Job, program: Program) -> bool:
    """Whether after a loss nothing but a checkpoint is looked at. A plan finds out what is still there."""
    is_replicated = trains_as_replicas(job, program)
    has_plan = not is_replicated and network_of(job) is not None
    return not has_plan and rule_of(job, is_replicated=is_replicated) is OnLoss.ROLLBACK


def _trained(ground: Ground, program: Program) -> Trained:
    if trains_as_replicas(ground.job, program):
        return replicated(ground)
    if network_of(ground.job) is None:
        return stored(ground, program)
    return laid_out(ground, program)


def replicated(ground: Ground) -> Trained:
    """Ranks that hold the same tensors, and differ in their samples only."""
    job, corpus = ground.job, ground.corpus
    keyed = KeyedRandom(ground.device)
    model = build_job_model(job, corpus, keyed, weights=ground.weights())
    model.module.to(ground.device)
    state = FlatState(model.logical_parameters())
    if job.train.compile is Compile.BLOCKS:
        compile_blocks(model, int(job.train.microbatch), job.data.sequence, ground.device)
    optimizer = build_job_optimizer(job, state)
    runner = StepRunner(
        rules=replace(step_rules(job), prior_share_s=ground.prior_share_s()),
        model=model,
        state=state,
        optimizer=optimizer,
        keyed=keyed,
        load=microbatch_loader(job, corpus, ground.device, int(job.train.microbatch)),
        learning_rate=rate_of(job, ground.num_steps),
        recorder=ground.recorder,
        faults=ground.faults,
        watch=ground.watch,
        tell=teller(ground.recorder, ground.link),
    )

    def initial() -> Mapping[str, Tensor]:
        again = build_job_model(job, corpus, KeyedRandom(ground.device), weights=ground.weights())
        return dict(again.logical_parameters())

    return Trained(
        state=ReplicatedState(state, optimizer, initial),
        runner=runner,
        evaluator=build_evaluator(ground, model),
        flops_per_token=flops_per_token(job, model),
    )


def laid_out(ground: Ground, program: Program) -> Trained:
    """Ranks that hold pieces: of tensors, of layers, of samples; as the job's plan says."""
    job, rank, devices = ground.job, ground.ticket["rank"], ground.job.orchestration.devices
    network = network_of(job)
    assert network is not None, "a class of the user's own has no plan"
    if ground.device.type != "cpu":  # Whatever a plan's ranks make, they make there.
        torch.set_default_device(ground.device)
    training = replace(training_of(job, network), clips=True)  # Every step is guarded by its norm.
    stand = ground.cluster()
    plan = compile_program(program, training, mesh=resolve_mesh(program, devices), cluster=stand)
    refuse_offload(plan, ground.device)
    chosen, every = job.train.optimizer, job.fault_tolerance.snapshots
    hosts = job.orchestration.hosts

    def domain_of(one: int) -> int:
        return one % devices * hosts // devices if hosts > 1 else stand.node_of(one % devices)

    copies = None if every == "off" else Snapshots(every, domain_of=domain_of)
    seats = SeatMaker(
        plans=Formations(program, training, plan=plan, cluster=stand),
        rules=Rules(
            optimizer=OPTIMIZERS[chosen.name](**chosen.chosen.model_dump()),
            learning_rate=rate_of(job, ground.num_steps),
            clip=clip_of(job),
        ),
        seed=job.train.seed,
        weights=ground.weights,
        load=lambda size: microbatch_loader(job, ground.corpus, ground.device, size),
        batches=lambda size: held_out_batches(ground, size),
        is_cut_short=lambda: ground.link.is_stop_wanted,
        snapshots=copies,
        recorder=ground.recorder,
        faults=ground.faults,
        watch=ground.watch,
    )
    elastic = ElasticSeat(
        rank=rank,
        first=seats.make(devices, rank % devices),
        make=seats.make,
        contents=seats.contents,
        snapshots=copies,
        tell=teller(ground.recorder, ground.link),
    )
    return Trained(
        state=elastic,
        runner=ElasticRunner(elastic),
        evaluator=ElasticEvaluator(elastic) if elastic.seat.evaluator is not None else None,
        flops_per_token=float(network.flops_per_token(job.data.sequence, causal=True)),
    )


def refuse_offload(plan: Plan, device: torch.device) -> None:
    """Whatever devices a cluster is said to have: a rank that computes on the host cannot do without its memory.

    Raises: InputError at the statement.
    """
    lines = [line for by_name in plan.bound.offloaded.values() for line in by_name.values()]
    if lines and device.type == "cpu":
        raise InputError(
            f"{lines[0].source}:{lines[0].line}  this rank's device is the host's memory: there is nowhere else to put "
            "what OFFLOAD names\n  Leave it out, or run where torch sees an accelerator."
        )


def compile_blocks(model: Model, microbatch: int, sequence: int, device: torch.device) -> None:
    """Have each layer compiled, now: a first step would take as long, and be taken for a rank that hangs."""
    assert isinstance(model.module, Decoder), "blocks are of networks"
    model.module.compile_blocks()
    tokens = torch.zeros((microbatch, sequence), dtype=torch.int64, device=device)
    model.loss_sum(tokens, tokens)[0].backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    model.module.zero_grad(set_to_none=True)


def stored(ground: Ground, program: Program) -> Trained:
    """Ranks that compute all of a class of the user's own, each on other samples, and keep pieces of its tensors.

    Raises: InputError for a class that cannot be built; StrategyError for formulas that do not fit its tensors.
    """
    job = ground.job
    keyed, timed = KeyedRandom(ground.device), Timed(ground.recorder, ground.watch)
    model = build_job_model(job, ground.corpus, keyed)
    model.module.to(ground.device)
    storage = storage_of_class(job, program, cluster=ground.cluster())
    rules = step_rules(job)
    module = StoredModule(
        model.module,
        storage,
        place=ground.ticket["rank"],
        num_parts=rules.num_shares or storage.num_ranks,
    )
    chosen = job.train.optimizer

    def initial() -> Mapping[str, Tensor]:
        return dict(build_job_model(job, ground.corpus, KeyedRandom(ground.device)).logical_parameters())

    state = StoredState(module, OPTIMIZERS[chosen.name](**chosen.chosen.model_dump()), initial, timed)
    runner = StoredRunner(
        rules=rules,
        microbatch=int(job.train.microbatch),
        model=model,
        stored=module,
        state=state,
        keyed=keyed,
        load=microbatch_loader(job, ground.corpus, ground.device, int(job.train.microbatch)),
        learning_rate=rate_of(job, ground.num_steps),
        timed=timed,
        recorder=ground.recorder,
        faults=ground.faults,
        watch=ground.watch,
    )
    return Trained(
        state=state,
        runner=runner,
        evaluator=build_evaluator(ground, model, takes_all=module.needs_all),
        flops_per_token=flops_per_token(job, model),
    )


def faults_of(ticket: Mapping[str, Any], link: Link) -> Faults:
    """The faults that are planted in this rank; the agent hears of each before it strikes."""

    def move() -> None:
        link.progress.count += 1

    return Faults(
        [Injection.from_json(values) for values in ticket["settings"]["injections"]],
        rank=ticket["rank"],
        folder=Path(ticket["folder"]),
        announce=lambda fields: link.send(Note(kind="planted", t_ns=time.monotonic_ns(), fields=fields)),
        move=move,
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
    job: Job, corpus: Corpus, device: torch.device, size: int
) -> Callable[[int, int, int], list[Microbatch]]:
    """Microbatches of a part of a step, from the part's first sample inside the batch and its number of samples."""
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

    Raises: RankError if the module is not the network.
    """
    source = network_of(job)
    if source is not None:
        refuse_another_network(source, model.logical_parameters())
        return float(source.flops_per_token(job.data.sequence, causal=True))
    return 6.0 * sum(parameter.numel() for _, parameter in model.logical_parameters())


def build_evaluator(ground: Ground, model: Model, *, takes_all: bool = False) -> Evaluator | None:
    """The scorer of the first held-out batches; None if nothing is held out. See Evaluator for ``takes_all``."""
    batches = held_out_batches(ground, min(int(ground.job.train.microbatch), ground.job.train.batch))
    if not batches:
        return None
    link = ground.link
    return Evaluator(
        model=model,
        batches=batches,
        watch=ground.watch,
        is_cut_short=lambda: link.is_stop_wanted,
        takes_all=takes_all,
    )


def held_out_batches(ground: Ground, size: int) -> list[Microbatch]:
    """The first held-out samples, as many together as a microbatch has."""
    job, corpus = ground.job, ground.corpus
    num_samples = min(corpus.num_held_out, job.train.evaluate.batches * job.train.batch)
    batches: list[Microbatch] = []
    for start in range(0, num_samples, size):
        tokens, targets = corpus.held_out_batch(start, min(size, num_samples - start))
        batches.append(
            (torch.from_numpy(tokens).to(ground.device), torch.from_numpy(targets).to(ground.device))
        )
    return batches
