"""Ranks in threads of one process that train a small class, stored in pieces or whole."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tests.runtime.stored.classes import VOCAB
from trimtab.catalog import THIS_MACHINE, Machine, cluster
from trimtab.plan.module_storage import ModuleStorage
from trimtab.runtime.assembly import build_job_optimizer
from trimtab.runtime.faults import Faults
from trimtab.runtime.flat_state import FlatState
from trimtab.runtime.job_rules import step_rules
from trimtab.runtime.laid_out import Timed
from trimtab.runtime.models import Model, build_model
from trimtab.runtime.optimizers import OPTIMIZERS
from trimtab.runtime.process_groups import Group, Interrupt, Rendezvous, connect_store
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.run_state import ReplicatedState
from trimtab.runtime.step import Requests, StepResult, StepRunner
from trimtab.runtime.stored import StoredModule, StoredRunner, StoredState, storage_of_class
from trimtab.spec import Injection, Job, load_job, parse_strategy

SEQUENCE = 6


class Unwatched:
    """A watch that nobody reads."""

    def __getattr__(self, name: str) -> Callable[..., "Unwatched"]:
        return lambda *_: self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def job_of(name: str, *, devices: int, strategy: str = "", **train: object) -> Job:
    """A job that trains one of the classes, with eight samples a step in four shares."""
    text = f"""
run: stored
model: {{module: "tests.runtime.stored.classes:{name}"}}
data: {{text: python-stdlib, sequence: {SEQUENCE}}}
train: {{steps: 4, batch: 8, microbatch: 1, clip: 0.5, optimizer: {{adamw: {{lr: 1e-2}}}}}}
orchestration: {{devices: {devices}}}
parallelism: "{strategy or f"MESH dp {devices}"}"
fault_tolerance: {{shares: 4}}
"""
    settings = [f"train.{key}={value}" for key, value in train.items()]
    return load_job(text, source="job.yaml", overrides=settings, environment={}, read=_no_file).job


def _no_file(path: str) -> str:
    raise FileNotFoundError(path)


def storage(job: Job) -> ModuleStorage:
    """How a job stores its class."""
    machine = Machine(num_devices=job.orchestration.devices, cores=1, memory_bytes=1 << 30)
    program = parse_strategy(job.parallelism.text, source="parallelism")
    return storage_of_class(job, program, cluster=cluster(THIS_MACHINE, machine=machine))


def load_of(job: Job) -> Callable[[int, int, int], Sequence[tuple[Tensor, Tensor]]]:
    """Samples that depend on their number alone, with ragged targets."""

    def load(step: int, first: int, count: int) -> Sequence[tuple[Tensor, Tensor]]:
        size, found = int(job.train.microbatch), []
        for number in range(first, first + count):
            generator = torch.Generator().manual_seed(1000 * step + number)
            tokens = torch.randint(VOCAB, (1, SEQUENCE), generator=generator)
            targets = torch.randint(VOCAB, (1, SEQUENCE), generator=generator)
            targets[:, 1 + number % SEQUENCE :] = -100
            found.append((tokens, targets))
        tokens, targets = (torch.cat(part) for part in zip(*found, strict=True))
        return list(zip(tokens.split(size), targets.split(size), strict=True))

    return load


def model_of(job: Job) -> Model:
    """The class of a job with its first weights."""
    return build_model(
        str(job.model.module),
        arguments={},
        seed=0,
        keyed=KeyedRandom(),
        compute=job.train.compute,
        is_cut_into_shares=True,
    )


@dataclass(kw_only=True)
class Rank:
    """One rank of a class that is stored in pieces."""

    group: Group
    model: Model
    module: StoredModule
    state: StoredState
    runner: StoredRunner

    def steps(self, number: int) -> list[StepResult]:
        return [self.step(step) for step in range(number)]

    def step(self, step: int) -> StepResult:
        asking, reply = self.runner.ask(step, Requests()), None
        while True:
            try:
                question = asking.send(reply)
            except StopIteration as end:
                return end.value
            reply = self.runner.answer(question)


_BUILDING = threading.Lock()
"""Torch's global generator, from which first weights are drawn, belongs to all threads."""


def rank_of(job: Job, group: Group, folder: Path, injections: Sequence[Injection] = ()) -> Rank:
    """A rank of the class, inside an epoch."""
    with _BUILDING:
        model = model_of(job)
        recorder = Recorder(folder, rank=group.rank, incarnation=0)
        timed = Timed(recorder, Unwatched())
        module = StoredModule(model.module, storage(job), place=group.rank, num_parts=4)

    def initial() -> dict[str, Tensor]:
        with _BUILDING:
            return dict(model_of(job).logical_parameters())

    chosen = job.train.optimizer
    state = StoredState(module, OPTIMIZERS[chosen.name](**chosen.chosen.model_dump()), initial, timed)
    runner = StoredRunner(
        rules=step_rules(job),
        microbatch=int(job.train.microbatch),
        model=model,
        stored=module,
        state=state,
        keyed=KeyedRandom(),
        load=load_of(job),
        learning_rate=lambda step: 1e-2,
        timed=timed,
        recorder=recorder,
        faults=Faults(injections, rank=group.rank, folder=folder, announce=lambda fields: None),
        watch=Unwatched(),
    )
    state.enter(group)
    runner.enter(group, step=0, owners=())
    return Rank(group=group, model=model, module=module, state=state, runner=runner)


def on_ranks(job: Job, folder: Path, act: Callable[[Rank], object], injections=()) -> list[object]:
    """What a function returns on every rank of a job; the first error of any."""
    size = job.orchestration.devices
    rendezvous = Rendezvous() if size > 1 else None
    # A microbatch seeds torch's global generator too.
    all_built = threading.Barrier(size)
    (folder / "ranks").mkdir(exist_ok=True)

    def life(number: int) -> object:
        store = connect_store("127.0.0.1", rendezvous.port) if rendezvous else None
        group = Group(
            members=tuple(range(size)), rank=number, epoch=1, store=store, kind="cpu", interrupt=Interrupt()
        )
        rank = rank_of(job, group, folder / "ranks", injections)
        all_built.wait()
        try:
            return act(rank)
        finally:
            rank.runner.leave()

    torch.set_num_threads(1)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(life, range(size)))


def whole_run(job: Job, folder: Path, steps: int) -> tuple[list[StepResult], ReplicatedState, Group]:
    """The same steps on one rank that has everything, by the runner of replicas."""
    torch.set_num_threads(1)
    (folder / "alone").mkdir(exist_ok=True)
    model = model_of(job)
    state = FlatState(model.logical_parameters())
    optimizer = build_job_optimizer(job, state)
    runner = StepRunner(
        rules=step_rules(job),
        model=model,
        state=state,
        optimizer=optimizer,
        keyed=KeyedRandom(),
        load=load_of(job),
        learning_rate=lambda step: 1e-2,
        recorder=Recorder(folder / "alone", rank=0, incarnation=0),
        faults=Faults((), rank=0, folder=folder / "alone", announce=lambda fields: None),
        watch=Unwatched(),
    )
    group = Group(members=(0,), rank=0, epoch=1, store=None, kind="cpu", interrupt=Interrupt())
    runner.enter(group, step=0, owners=(0,) * 4)
    results = [runner.run(step, Requests()) for step in range(steps)]
    return results, ReplicatedState(state, optimizer), group
