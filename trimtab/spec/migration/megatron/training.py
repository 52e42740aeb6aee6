"""How long, with what batch and by which rule the weights change; when state is saved and text is scored."""

import re
from dataclasses import dataclass

from trimtab.spec.migration.megatron.degrees import Degrees
from trimtab.spec.migration.megatron.draft import Draft
from trimtab.spec.migration.settings import MigrationError

_MICROBATCH, _BATCH = "--micro-batch-size", "--global-batch-size"
_RAMP, _STEPPED = "--rampup-batch-size", "--step-batch-size-schedule"
_ITERATIONS, _SAMPLES, _TOKENS = "--train-iters", "--train-samples", "--train-tokens"
_STYLE, _PEAK, _FLOOR = "--lr-decay-style", "--lr", "--min-lr"

OF_MEGATRON = "default of Megatron-LM"
NOTHING_SAID = 1000
"""Steps of a job whose settings say no length: something to begin with, and a warning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Length:
    """How long a training is: steps, samples of a step, tokens of a sample."""

    steps: int
    batch: int
    sequence: int

    def steps_for(self, samples: float) -> int:
        """Steps that so many samples make."""
        return max(0, round(samples / self.batch))


def read_batch(draft: Draft, degrees: Degrees) -> int:
    """The samples of a step: set with the microbatch and one share for each replica.

    Raises: MigrationError if the batch does not come out over replicas and microbatches.
    """
    replicas = degrees.data
    microbatch = draft.flags.positive(_MICROBATCH) or 1
    batch = draft.flags.positive(_BATCH) or _last_of_steps(draft) or microbatch * replicas
    if batch % (microbatch * replicas):
        batch = _next_batch(draft, batch, microbatch, replicas)
    draft.set("train.batch", batch)
    draft.set("train.microbatch", microbatch)
    draft.set("fault_tolerance.shares", replicas)
    draft.notes["fault_tolerance.shares"] = "one share for each replica: the microbatches of Megatron-LM"
    if _BATCH not in draft.flags:
        draft.notes["train.batch"] = f"{OF_MEGATRON}: microbatch times replicas"
    if _MICROBATCH not in draft.flags:
        draft.notes["train.microbatch"] = "nothing was said"
    draft.carry(_BATCH, "train.batch")
    draft.carry(_MICROBATCH, "train.microbatch")
    draft.refuse(_RAMP, "a batch is a constant of the run; it has its last size from the first step")
    _tell_steps(draft)
    return batch


def _next_batch(draft: Draft, batch: int, microbatch: int, replicas: int) -> int:
    whole = -(-batch // (microbatch * replicas)) * microbatch * replicas
    draft.warnings.append(
        f"a batch of {batch} is not {replicas} replicas times microbatches of {microbatch}; written with {whole}"
    )
    return whole


def _last_of_steps(draft: Draft) -> int | None:
    """The last size of a schedule such as ``0:384 200B:768``."""
    sizes = re.findall(r":(\d{1,9})", draft.flags.text(_STEPPED) or "")
    return int(sizes[-1]) if sizes else None


def _tell_steps(draft: Draft) -> None:
    reason = "a batch is a constant of the run; it has its last size from the first step"
    if _BATCH in draft.flags or _last_of_steps(draft) is None:
        draft.refuse(_STEPPED, reason)
    else:
        draft.change(_STEPPED, "train.batch", reason=reason)


def read_length(draft: Draft, batch: int, sequence: int) -> Length:
    """The steps of the run, set under train."""
    flags = draft.flags
    samples, tokens = flags.number(_SAMPLES), flags.number(_TOKENS)
    steps = flags.positive(_ITERATIONS)
    length = Length(steps=1, batch=batch, sequence=sequence)
    if steps is None and (samples or tokens):
        steps = max(1, length.steps_for(samples or (tokens or 0) / sequence))
    if steps is None:
        steps = NOTHING_SAID
        draft.warnings.append(f"nothing says how long the training is; train.steps is {steps}")
    draft.set("train.steps", steps)
    draft.carry(_ITERATIONS, "train.steps")
    draft.change(_SAMPLES, "train.steps", reason=f"in steps of {batch} samples")
    draft.change(_TOKENS, "train.steps", reason=f"in steps of {batch} samples of {sequence} tokens")
    return Length(steps=steps, batch=batch, sequence=sequence)


def read_optimizer(draft: Draft) -> None:
    """The optimizer with its settings, the clipping, the seed."""
    name = draft.flags.text("--optimizer") or "adam"
    section = "sgd" if name == "sgd" else "adamw"
    path = f"train.optimizer.{section}"
    _number(draft, _PEAK, f"{path}.lr", None)
    if section == "adamw":
        _betas(draft, f"{path}.betas")
        _number(draft, "--adam-eps", f"{path}.eps", 1e-8)
        draft.drop("--sgd-momentum", "the optimizer is not sgd")
    else:
        _number(draft, "--sgd-momentum", f"{path}.momentum", 0.9)
        for beta in ("--adam-beta1", "--adam-beta2", "--adam-betas", "--adam-eps"):
            draft.drop(beta, "the optimizer is sgd")
    _decay(draft, f"{path}.weight_decay")
    if name in ("adam", "adamw", "sgd"):
        draft.carry("--optimizer", path)
    else:
        draft.change(
            "--optimizer", path, reason="optimizers are adamw and sgd; the rates of another one do not fit"
        )
        draft.warnings.append(f"the optimizer {name} became adamw: its learning rate must be found again")
    _clipping(draft)
    _seed(draft)


def _number(draft: Draft, flag: str, path: str, default: float | None) -> None:
    value = draft.flags.number(flag)
    if value is not None:
        draft.set(path, value)
        draft.carry(flag, path)
    elif default is not None:
        draft.set(path, default)
        draft.notes[path] = OF_MEGATRON


def _decay(draft: Draft, path: str) -> None:
    _number(draft, "--weight-decay", path, 0.01)
    course = "--weight-decay-incr-style"
    draft.drop(course, "the decay is a constant, as here")
    if draft.flags.text(course) != "constant":
        draft.refuse(course, "the decay is a constant")


def _betas(draft: Draft, path: str) -> None:
    both = draft.flags.texts("--adam-betas")
    try:
        given = [float(text) for text in both] if len(both) == 2 else []
    except ValueError:
        raise MigrationError(f"betas are {' '.join(both)!r}; they take two numbers") from None
    first, second = draft.flags.number("--adam-beta1"), draft.flags.number("--adam-beta2")
    betas = given or [0.9 if first is None else first, 0.999 if second is None else second]
    draft.set(path, betas)
    for flag in ("--adam-beta1", "--adam-beta2", "--adam-betas"):
        draft.carry(flag, path)
    if first is None and second is None and not given:
        draft.notes[path] = OF_MEGATRON


def _clipping(draft: Draft) -> None:
    clip = draft.flags.number("--clip-grad")
    draft.set("train.clip", "off" if clip is not None and clip <= 0 else 1.0 if clip is None else clip)
    draft.carry("--clip-grad", "train.clip")
    if clip is None:
        draft.notes["train.clip"] = OF_MEGATRON


def _seed(draft: Draft) -> None:
    seed = draft.flags.whole("--seed")
    draft.set("train.seed", 1234 if seed is None else abs(seed))
    draft.carry("--seed", "train.seed", reason="the numbers drawn from it are others")
    if seed is None:
        draft.notes["train.seed"] = OF_MEGATRON


_STYLES = {
    "constant": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "inverse-square-root": "inverse_sqrt",
    "WSD": "constant",
}
"""Megatron's courses of the learning rate, and what they are called here."""


def read_lr_schedule(draft: Draft, length: Length) -> None:
    """The course of the learning rate: its name, warm-up and floor."""
    style = draft.flags.text(_STYLE) or "linear"
    if style not in _STYLES:
        raise MigrationError(f"{_STYLE} is {style!r}; it takes one of {', '.join(_STYLES)}")
    path = f"train.lr_schedule.{_STYLES[style]}"
    _warmup(draft, length, f"{path}.warmup")
    _floor(draft, path, has_floor=_STYLES[style] in ("linear", "cosine"))
    if style == "WSD":
        reason = "constant has no fall at its end: resume the last part with lr_schedule: {linear: {}}"
        draft.change(_STYLE, path, reason=reason)
    else:
        draft.carry(_STYLE, path)
    if _STYLE not in draft.flags:
        draft.notes[path] = OF_MEGATRON
    _end_of_decay(draft, length)


def _warmup(draft: Draft, length: Length, path: str) -> None:
    fraction, iterations = draft.flags.number("--lr-warmup-fraction"), draft.flags.number("--lr-warmup-iters")
    samples, tokens = draft.flags.number("--lr-warmup-samples"), draft.flags.number("--lr-warmup-tokens")
    steps = round(iterations or 0)
    if fraction:
        steps = round(fraction * (_decay_steps(draft, length) or length.steps))
    elif samples:
        steps = length.steps_for(samples)
    elif tokens:
        steps = length.steps_for(tokens / length.sequence)
    steps = min(max(0, steps), length.steps)
    draft.set(path, steps)
    draft.carry("--lr-warmup-iters", path)
    draft.change("--lr-warmup-fraction", path, reason="in steps")
    draft.change("--lr-warmup-samples", path, reason=f"in steps of {length.batch} samples")
    draft.change(
        "--lr-warmup-tokens", path, reason=f"in steps of {length.batch} samples of {length.sequence} tokens"
    )
    if not draft.flags.number("--lr-warmup-init"):
        draft.drop("--lr-warmup-init", "the warm-up begins at 0")
    draft.refuse_rest("--lr-warmup-init", "the warm-up begins at 0")


def _floor(draft: Draft, path: str, *, has_floor: bool) -> None:
    peak, least = draft.flags.number(_PEAK), draft.flags.number(_FLOOR) or 0.0
    if not has_floor:
        draft.refuse(_FLOOR, "this schedule falls to no floor")
        return
    floor = min(1.0, max(0.0, float(f"{least / peak:.12g}"))) if peak else 0.0
    draft.set(f"{path}.floor", floor)
    draft.change(_FLOOR, f"{path}.floor", reason="as a fraction of the peak")
    if _FLOOR not in draft.flags:
        draft.notes[f"{path}.floor"] = OF_MEGATRON


def _decay_steps(draft: Draft, length: Length) -> int | None:
    """The step at which Megatron's rate has reached its floor; None if that is not said."""
    iterations, samples = draft.flags.number("--lr-decay-iters"), draft.flags.number("--lr-decay-samples")
    tokens = draft.flags.number("--lr-decay-tokens")
    if iterations:
        return round(iterations)
    return (
        length.steps_for(samples)
        if samples
        else length.steps_for(tokens / length.sequence)
        if tokens
        else None
    )


def _end_of_decay(draft: Draft, length: Length) -> None:
    steps = _decay_steps(draft, length)
    for name in ("--lr-decay-iters", "--lr-decay-samples", "--lr-decay-tokens"):
        if steps is None or abs(steps - length.steps) <= 1:
            draft.drop(name, "the fall ends at the last step, as here")
        else:
            draft.refuse(name, f"the fall ends at the last step, {length.steps}, not at step {steps}")


def read_intervals(draft: Draft, length: Length) -> None:
    """When state is saved and held-out text is scored."""
    every = draft.flags.whole("--save-interval") or draft.flags.whole("--persistent-save-interval")
    if every and every > 0:
        draft.set("fault_tolerance.checkpoint.every", every)
        for name in ("--save-interval", "--persistent-save-interval"):
            draft.carry(name, "fault_tolerance.checkpoint.every")
    for name in ("--save-interval", "--persistent-save-interval"):
        draft.refuse_rest(name, "checkpoints are saved every so many steps, at least 1")
    keep = draft.flags.whole("--save-top-k")
    if keep is not None and keep > 0:
        draft.set("fault_tolerance.checkpoint.keep", keep)
        reason = "the newest are kept, not those with the lowest loss"
        draft.change("--save-top-k", "fault_tolerance.checkpoint.keep", reason=reason)
    draft.refuse_rest(
        "--save-top-k", "never all checkpoints are kept: fault_tolerance.checkpoint.keep says how many"
    )
    _folder(draft)
    _evaluation(draft)
    _exit(draft, length)


def _folder(draft: Draft) -> None:
    folder = draft.flags.text("--save")
    if folder and "<" not in folder:
        draft.set("orchestration.runs", folder)
        draft.change(
            "--save", "orchestration.runs", reason="a run keeps its checkpoints in a folder of its own there"
        )
    else:
        draft.drop("--save", "a run keeps its checkpoints in a folder of its own under orchestration.runs")


def _evaluation(draft: Draft) -> None:
    every, batches = draft.flags.whole("--eval-interval"), draft.flags.whole("--eval-iters")
    if reason := _idle_evaluation(draft, batches):
        for name in ("--eval-interval", "--eval-iters"):
            draft.drop(name, reason)
        return
    if every is not None and every > 0:
        draft.set("train.evaluate.every", every)
        draft.carry("--eval-interval", "train.evaluate.every")
    draft.refuse_rest("--eval-interval", "an evaluation comes every so many steps, at least 1")
    if batches is not None:
        draft.set("train.evaluate.batches", batches)
        draft.carry("--eval-iters", "train.evaluate.batches")


def _idle_evaluation(draft: Draft, batches: int | None) -> str:
    """Why nothing is ever scored; empty if something is."""
    if batches is not None and batches <= 0:
        return "no evaluation is asked for"
    return "no text is held out" if draft.job["data"].get("held_out") == 0 else ""


def _exit(draft: Draft, length: Length) -> None:
    steps = draft.flags.whole("--exit-interval")
    if steps is not None and steps >= length.steps:
        draft.drop("--exit-interval", "the run ends before")
    else:
        draft.refuse(
            "--exit-interval", "a run ends after train.steps; `trimtab stop RUN` ends it earlier, state saved"
        )
