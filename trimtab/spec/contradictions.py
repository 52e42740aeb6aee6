"""Settings that are each right and cannot hold together.

Each rule looks at a job whose constants are resolved and yields what it refuses, with the keys that
contradict each other; the loader turns the keys into places. What only the network's shapes can tell
(heads against kv_heads) the catalog refuses.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trimtab.spec.cards import Compile, Data, Engine, Job, Model, OnNonfinite, Train, TrainedTokenizer
from trimtab.spec.constants import divisors
from trimtab.spec.fields import Path
from trimtab.spec.spiking import SpikeAnswer
from trimtab.terms import OnLoss, format_seconds, read_address


@dataclass(frozen=True, kw_only=True, slots=True)
class Contradiction:
    """Keys that cannot hold together.

    Args:
        message: What was found and what was required.
        paths: The keys, the one to change first.
        hint: What to do.
    """

    message: str
    paths: tuple[Path, ...]
    hint: str


def contradictions(job: Job, replicas: int) -> Iterator[Contradiction]:
    """Everything in a job that contradicts something else in it.

    Args:
        job: Its constants are resolved.
        replicas: Ranks that compute different samples; fewer than the devices if the formulas split more than
            the batch.
    """
    for rule in RULES:
        yield from rule(job)
    for cut in CUTS:
        yield from cut(job, replicas)


STEPS, EPOCHS = ("train", "steps"), ("train", "epochs")
COMPILE = ("train", "compile")
BATCH, MICROBATCH = ("train", "batch"), ("train", "microbatch")
DEVICES, ENGINE = ("orchestration", "devices"), ("orchestration", "engine")
HOSTS = ("orchestration", "hosts")
SHARES, ON_LOSS = ("fault_tolerance", "shares"), ("fault_tolerance", "on_loss")
CHECKPOINT_EVERY = ("fault_tolerance", "checkpoint", "every")
KEEP_BEST = ("fault_tolerance", "checkpoint", "keep_best")
EVALUATE_EVERY = ("train", "evaluate", "every")
HELD_OUT = ("data", "held_out")
SCRIPT = ("script", "file")

DEFAULTS_OF_TRAIN = Train()
LEFT_TO_TRAIN = "steps, batch, microbatch, seed, clip and on_nonfinite"
"""The keys of ``train`` that hold for a loop of the user's own, too."""


def _length(job: Job) -> Iterator[Contradiction]:
    train = job.train
    if train.steps is None and train.epochs is None and job.script is None:
        message = "train says neither steps nor epochs; it takes exactly one of them"
        yield Contradiction(
            message=message, paths=(STEPS,), hint="Add `steps: 1000` or `epochs: 1` under train."
        )
    if train.steps is not None and train.epochs is not None:
        message = (
            f"train.steps is {train.steps} and train.epochs is {train.epochs:g}; one of them ends the run"
        )
        yield Contradiction(message=message, paths=(EPOCHS, STEPS), hint="Keep one of the two.")


def _script(job: Job) -> Iterator[Contradiction]:
    """What the program of the user decides cannot be said beside it."""
    if job.script is None:
        return
    if job.orchestration.engine is Engine.TORCHRUN:
        message = "script is started by Trimtab's own agent, and orchestration.engine is torchrun"
        hint = "Use engine: local, or start the script by torchrun itself."
        yield Contradiction(message=message, paths=(ENGINE, SCRIPT), hint=hint)
    train = job.train
    said_twice = {
        ("model",): job.model != Model(),
        ("data",): job.data != Data(text=()),
        EPOCHS: train.epochs is not None,
        ("train", "optimizer"): train.optimizer != DEFAULTS_OF_TRAIN.optimizer,
        ("train", "lr_schedule"): train.lr_schedule != DEFAULTS_OF_TRAIN.lr_schedule,
        ("train", "compute"): train.compute is not DEFAULTS_OF_TRAIN.compute,
        COMPILE: train.compile is not DEFAULTS_OF_TRAIN.compile,
        ("train", "evaluate"): train.evaluate != DEFAULTS_OF_TRAIN.evaluate,
    }
    for path, is_said in said_twice.items():
        if is_said:
            name = ".".join(path)
            message = f"{name} is for runs of Trimtab's own loop, and script is a program of yours"
            hint = f"Take {name} out; the script says it. Beside a script, train takes {LEFT_TO_TRAIN}."
            yield Contradiction(message=message, paths=(path, SCRIPT), hint=hint)


def _network(job: Job) -> Iterator[Contradiction]:
    given = job.model.named
    paths = tuple(("model", key) for key in given)
    if not given and job.script is None:
        message = "model names neither a preset, a folder nor a module; it takes exactly one of them"
        hint = "Add `preset: gpt-3m`, `folder: PATH` or `module: package:Class`."
        yield Contradiction(message=message, paths=(("model", "preset"),), hint=hint)
    if len(given) > 1:
        listed = " and ".join(f"model.{key} is {value}" for key, value in given.items())
        hint = f"Keep one of the {'two' if len(given) == 2 else 'three'}."
        yield Contradiction(message=f"{listed}; only one can be trained", paths=paths[::-1], hint=hint)
    if job.model.weights == "folder" and job.model.folder is None:
        message = "model.weights is folder, and model.folder names none"
        yield Contradiction(
            message=message, paths=(("model", "weights"),), hint="Take it out, or name the folder."
        )
    if job.model.configuration and job.model.folder is None:
        message = "model.configuration is what config.json of model.folder says, and there is no folder"
        yield Contradiction(
            message=message, paths=(("model", "configuration"),), hint="Take it out, or name the folder."
        )


def _network_settings(job: Job) -> Iterator[Contradiction]:
    model = job.model
    if model.args and model.module is None:
        message = "model.args are for a class named by model.module, and there is none"
        yield Contradiction(
            message=message,
            paths=(("model", "args"), ("model", "preset"), ("model", "folder")),
            hint="Other networks are changed by keys such as layers and embed.",
        )
    if model.module is None:
        return
    for key in model.changes:
        message = f"model.{key} changes a preset, and model.module is a class of your own"
        paths = (("model", key), ("model", "module"))
        yield Contradiction(message=message, paths=paths, hint=f"Hand it to the class: args: {{{key}: …}}.")


def _compiled(job: Job) -> Iterator[Contradiction]:
    if job.train.compile is Compile.BLOCKS and job.model.module is not None:
        message = (
            "train.compile is blocks, which are layers of a network, and model.module is a class of your own"
        )
        hint = "Take train.compile out, and call torch.compile in the class."
        yield Contradiction(message=message, paths=(COMPILE, ("model", "module")), hint=hint)


def _sequence(job: Job) -> Iterator[Contradiction]:
    context, sequence = job.model.context, job.data.sequence
    if context is not None and sequence > context:
        message = f"data.sequence is {sequence} tokens; model.context allows {context}"
        paths = (("data", "sequence"), ("model", "context"))
        yield Contradiction(message=message, paths=paths, hint=f"Set data.sequence to {context} or less.")


def _vocabulary(job: Job) -> Iterator[Contradiction]:
    vocab, tokenizer = job.model.vocab, job.data.tokenizer
    path: Path
    if isinstance(tokenizer, TrainedTokenizer):
        needed, path = tokenizer.bpe.vocab, ("data", "tokenizer", "bpe", "vocab")
    elif tokenizer == "bytes":
        needed, path = 256, ("data", "tokenizer")
    else:
        return
    if vocab is not None and vocab < needed:
        message = f"model.vocab is {vocab}; the tokenizer gives {needed} different tokens"
        paths = (("model", "vocab"), path)
        yield Contradiction(message=message, paths=paths, hint=f"Set model.vocab to {needed} or more.")


def _shares(job: Job, replicas: int) -> Iterator[Contradiction]:
    batch, shares = job.train.batch, job.fault_tolerance.shares
    noun = "device" if replicas == job.orchestration.devices else "replica"
    if batch < replicas:
        message = f"train.batch is {batch} samples for {replicas} {noun}s; each {noun} needs one"
        yield Contradiction(
            message=message, paths=(BATCH, DEVICES), hint=f"Set train.batch to {replicas} or more."
        )
    elif shares == "off":
        if batch % replicas:
            below, above = batch // replicas * replicas, (batch // replicas + 1) * replicas
            message = f"with shares off, train.batch is cut into {replicas} equal parts; {batch} cannot be"
            paths = (BATCH, DEVICES, SHARES)
            yield Contradiction(message=message, paths=paths, hint=f"Nearest batches: {below} and {above}.")
    elif isinstance(shares, int) and batch % shares:
        message = f"fault_tolerance.shares is {shares}, which does not divide train.batch {batch}"
        hint = f"Nearest shares: {_nearest(shares, divisors(batch), fewest=replicas)}."
        yield Contradiction(message=message, paths=(SHARES, BATCH), hint=hint)
    elif isinstance(shares, int) and shares < replicas:
        message = f"fault_tolerance.shares is {shares} for {replicas} {noun}s; each {noun} needs one"
        hint = f"Nearest shares: {_nearest(replicas, divisors(batch), fewest=replicas)}."
        yield Contradiction(message=message, paths=(SHARES, DEVICES), hint=hint)


def _microbatch(job: Job, replicas: int) -> Iterator[Contradiction]:
    batch, shares, size = job.train.batch, job.fault_tolerance.shares, job.train.microbatch
    parts, cut = (replicas, DEVICES) if shares == "off" else (shares, SHARES)
    assert isinstance(parts, int), "constants are resolved"
    assert isinstance(size, int), "constants are resolved"
    if batch % parts or batch < parts or (batch // parts) % size == 0:
        return
    samples = batch // parts
    part = "device" if shares == "off" else "share"
    message = f"train.microbatch is {size}, which does not divide the {samples} samples of one {part}"
    hint = f"Nearest microbatches: {_nearest(size, divisors(samples))}."
    yield Contradiction(message=message, paths=(MICROBATCH, BATCH, cut), hint=hint)


def _loss_of_a_rank(job: Job) -> Iterator[Contradiction]:
    on_loss, engine = job.fault_tolerance.on_loss, job.orchestration.engine
    if engine is Engine.TORCHRUN and on_loss not in (OnLoss.ROLLBACK, OnLoss.AUTO):
        message = f"on_loss {on_loss} survives inside the step; torchrun kills every rank when one dies"
        hint = "Use engine: local, or on_loss: rollback, which starts again at the newest checkpoint."
        yield Contradiction(message=message, paths=(ON_LOSS, ENGINE), hint=hint)
    elif job.fault_tolerance.shares == "off" and on_loss in (OnLoss.EXACT, OnLoss.REDO):
        message = (
            f"on_loss {on_loss} promises the same bits, which need shares; fault_tolerance.shares is off"
        )
        hint = "Give shares a number or auto, or use on_loss: same_batch."
        yield Contradiction(message=message, paths=(ON_LOSS, SHARES), hint=hint)


def _replacement(job: Job) -> Iterator[Contradiction]:
    if job.fault_tolerance.replace and job.orchestration.engine is Engine.TORCHRUN:
        message = (
            "replace starts a new process for a lost rank; under torchrun only torchrun starts processes"
        )
        paths = (("fault_tolerance", "replace"), ENGINE)
        yield Contradiction(message=message, paths=paths, hint="Use engine: local, or replace: false.")


def _return_to_a_checkpoint(job: Job) -> Iterator[Contradiction]:
    if job.fault_tolerance.checkpoint.every != "off":
        return
    # Under torchrun there is no other choice of on_loss: `job_files` warns.
    if job.fault_tolerance.on_loss is OnLoss.ROLLBACK and job.orchestration.engine is not Engine.TORCHRUN:
        message = "on_loss rollback goes back to a checkpoint, and checkpoint.every is off"
        yield Contradiction(message=message, paths=(ON_LOSS, CHECKPOINT_EVERY), hint="Use every: adaptive.")
    if job.train.on_nonfinite is OnNonfinite.ROLLBACK:
        message = "on_nonfinite rollback goes back to a checkpoint, and checkpoint.every is off"
        paths = (("train", "on_nonfinite"), CHECKPOINT_EVERY)
        yield Contradiction(message=message, paths=paths, hint="Use every: adaptive, or on_nonfinite: skip.")
    if job.train.on_spike.answer is SpikeAnswer.ROLLBACK:
        message = "on_spike rollback goes back to a checkpoint, and checkpoint.every is off"
        where = (("train", "on_spike", "answer"), CHECKPOINT_EVERY)
        yield Contradiction(message=message, paths=where, hint="Use every: adaptive, or answer: skip.")
    if job.fault_tolerance.checkpoint.keep_best:
        message = "keep_best keeps a checkpoint, and checkpoint.every is off"
        yield Contradiction(message=message, paths=(KEEP_BEST, CHECKPOINT_EVERY), hint="Use every: adaptive.")


def _best_checkpoint(job: Job) -> Iterator[Contradiction]:
    if job.fault_tolerance.checkpoint.keep_best and job.train.evaluate.every == 0:
        message = "keep_best compares evaluations, and train.evaluate.every is 0, only at the end"
        hint = "Set train.evaluate.every to a number of steps."
        yield Contradiction(message=message, paths=(KEEP_BEST, EVALUATE_EVERY), hint=hint)


def _evaluation(job: Job) -> Iterator[Contradiction]:
    if job.train.evaluate.every > 0 and job.data.held_out == 0:
        message = "train.evaluate scores the held-out text, and data.held_out is 0"
        hint = "Hold out a fraction such as 0.05, or set train.evaluate.every to 0."
        yield Contradiction(message=message, paths=(EVALUATE_EVERY, HELD_OUT), hint=hint)


def _warmup(job: Job) -> Iterator[Contradiction]:
    steps, schedule = job.train.steps, job.train.lr_schedule
    warmup = schedule.chosen.warmup
    if steps is not None and warmup > steps:
        message = f"the warm-up of {warmup} steps is longer than the run of {steps}"
        paths = (("train", "lr_schedule", schedule.name, "warmup"), STEPS)
        yield Contradiction(message=message, paths=paths, hint=f"Set warmup to {steps} or less.")


def _momentum(job: Job) -> Iterator[Contradiction]:
    sgd = job.train.optimizer.sgd
    if sgd is not None and sgd.nesterov and sgd.momentum == 0:
        message = "nesterov looks ahead along the momentum, and momentum is 0"
        paths = (("train", "optimizer", "sgd", "nesterov"), ("train", "optimizer", "sgd", "momentum"))
        yield Contradiction(message=message, paths=paths, hint="Set momentum to a value such as 0.9.")


def _detection(job: Job) -> Iterator[Contradiction]:
    limits, section = job.fault_tolerance.detection, ("fault_tolerance", "detection")
    for shorter, longer, reason in (
        ("heartbeat", "progress", "a dead rank would count as a slow one"),
        ("progress", "first_step", "the first step would have less time than the others"),
        ("progress", "step", "a rank would be blamed for a step before it could be for standing still"),
    ):
        short_s, long_s = limits.limit_s(shorter), limits.limit_s(longer)
        if short_s > long_s:
            message = (
                f"detection.{shorter} is {format_seconds(short_s)} and detection.{longer} is "
                f"{format_seconds(long_s)}: {reason}"
            )
            paths = ((*section, shorter), (*section, longer))
            yield Contradiction(message=message, paths=paths, hint=f"Keep {shorter} at or below {longer}.")


def _probe(job: Job) -> Iterator[Contradiction]:
    if job.fault_tolerance.detection.probe and job.fault_tolerance.shares == "off":
        message = "detection.probe computes shares again, and fault_tolerance.shares is off"
        paths = (("fault_tolerance", "detection", "probe"), SHARES)
        yield Contradiction(
            message=message, paths=paths, hint="Give shares a number or auto, or set probe: 0."
        )


def _environment(job: Job) -> Iterator[Contradiction]:
    environment, section = job.orchestration.environment, ("orchestration", "environment")
    for name in environment.passed:
        if name in environment.assigned:
            message = f"the variable {name} is both handed on and set"
            paths = ((*section, "pass"), (*section, "set", name))
            yield Contradiction(message=message, paths=paths, hint="Keep one of the two.")


def _several_hosts(job: Job) -> Iterator[Contradiction]:
    card = job.orchestration
    if card.hosts == 1:
        for key, value in (("listen", card.listen), ("token_file", card.token_file)):
            if value is not None:
                message = f"orchestration.{key} is for runs of several hosts, and orchestration.hosts is 1"
                paths = (("orchestration", key), HOSTS)
                yield Contradiction(message=message, paths=paths, hint=f"Take {key} out, or set hosts.")
        return
    if card.engine is Engine.TORCHRUN:
        message = f"orchestration.hosts is {card.hosts}; under torchrun, torchrun joins the hosts"
        hint = "Use engine: local, or start torchrun by hand on every host."
        yield Contradiction(message=message, paths=(HOSTS, ENGINE), hint=hint)
    if job.script is not None:
        message = f"orchestration.hosts is {card.hosts}, and a script runs on one host"
        yield Contradiction(message=message, paths=(HOSTS, SCRIPT), hint="Set hosts to 1.")
    if card.devices % card.hosts:
        message = f"orchestration.devices is {card.devices}, which {card.hosts} hosts cannot share evenly"
        below, above = card.devices // card.hosts * card.hosts, -(-card.devices // card.hosts) * card.hosts
        nearest = " and ".join(str(number) for number in (below, above) if number)
        yield Contradiction(message=message, paths=(DEVICES, HOSTS), hint=f"Nearest devices: {nearest}.")
    if card.listen is None:
        message = (
            f"orchestration.hosts is {card.hosts}, and nothing says where the others reach the first one"
        )
        hint = "Add listen: ADDRESS:PORT under orchestration, an address of the first host."
        yield Contradiction(message=message, paths=(HOSTS,), hint=hint)
    elif read_address(card.listen) is None:
        message = f"orchestration.listen is {card.listen!r}; it takes ADDRESS:PORT"
        hint = "An example: listen: 10.0.0.1:29400. Port 0 takes a free one."
        yield Contradiction(message=message, paths=(("orchestration", "listen"),), hint=hint)


RULES: tuple[Callable[[Job], Iterator[Contradiction]], ...] = (
    _length,
    _script,
    _network,
    _network_settings,
    _compiled,
    _sequence,
    _vocabulary,
    _loss_of_a_rank,
    _replacement,
    _return_to_a_checkpoint,
    _best_checkpoint,
    _evaluation,
    _warmup,
    _momentum,
    _detection,
    _probe,
    _environment,
    _several_hosts,
)
"""Every rule; the mesh against the devices is checked where the formulas are."""

CUTS: tuple[Callable[[Job, int], Iterator[Contradiction]], ...] = (_shares, _microbatch)
"""Rules about how the batch is cut for so many replicas."""


def _nearest(value: int, valid: list[int], *, fewest: int = 1) -> str:
    """The valid numbers on both sides of a value."""
    enough = [number for number in valid if number >= fewest]
    below = [number for number in enough if number < value][-1:]
    above = [number for number in enough if number >= value][:1]
    return " or ".join(str(number) for number in (*below, *above))
