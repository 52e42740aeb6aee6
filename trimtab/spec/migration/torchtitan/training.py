"""Batch, length, optimizer and learning rate.

Source: torchtitan 0.1.0 and 0.2.0, torchtitan/config_manager.py, torchtitan/components/lr_scheduler.py; defaults that
a file leaves out are spelt out where ours differ.
"""

from trimtab.spec.migration.deepspeed.batch import checked_batch, shares_for
from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout, microbatch_warning
from trimtab.spec.migration.settings import MigrationError
from trimtab.spec.migration.torchtitan.pipeline import microbatch

LOCAL, GLOBAL = "training.local_batch_size", "training.global_batch_size"
STEPS, WARMUP = "training.steps", "lr_scheduler.warmup_steps"
DECAY_RATIO, DECAY_TYPE = "lr_scheduler.decay_ratio", "lr_scheduler.decay_type"
FLOOR = "lr_scheduler.min_lr_factor"
ADAMW = "train.optimizer.adamw."

_DEFAULTS = {LOCAL: 8, STEPS: 10_000, WARMUP: 200, "training.seq_len": 2048}
_ADAM_DEFAULTS = {"lr": 8e-4, "eps": 1e-8, "weight_decay": 0.1}
_BETAS = {"beta1": 0.9, "beta2": 0.95}


def answer_training(draft: Draft, layout: Layout) -> None:
    """Write how long, with what batch and by which rule the weights change.

    Raises: MigrationError where torchtitan refuses the file.
    """
    _answer_batch(draft, layout)
    _answer_length(draft)
    _answer_optimizer(draft)
    _answer_schedule(draft)
    _answer_clipping(draft)
    _answer_seed(draft)
    _answer_validation(draft)


def _number(draft: Draft, flag: str) -> int:
    number = draft.integer(flag)
    return _DEFAULTS[flag] if number is None else number


def _answer_batch(draft: Draft, layout: Layout) -> None:
    local = _number(draft, LOCAL)
    least = local * layout.batch_parts
    batch = draft.integer(GLOBAL) or -1
    batch = checked_batch(least if batch < 0 else batch)
    if local < 1 or batch % least:
        raise MigrationError(
            f"{GLOBAL} {batch} is not a multiple of {local} samples on each of {layout.batch_parts} "
            "data-parallel ranks; torchtitan refuses that"
        )
    samples = microbatch(draft, layout, local)
    product = f"{layout.batch_parts} data-parallel ranks with {local} each"
    draft.put({"train.batch": batch}, note=product)
    draft.put({"train.microbatch": samples}, note="torchtitan's default")
    if layout.pp == 1:
        draft.carried(LOCAL, "train.microbatch", "train.batch")
    else:
        draft.changed(LOCAL, "train.batch", reason=product)
    if (draft.integer(GLOBAL) or -1) > 0:
        draft.carried(GLOBAL, "train.batch")
    else:
        draft.irrelevant(GLOBAL, "-1: the local batch on every data-parallel rank")
    if layout.pp > 1:
        draft.put({"fault_tolerance.shares": batch // local}, note="each passes the pipeline alone")
        draft.warnings += microbatch_warning(layout, local // samples)
    elif shares := shares_for(batch=batch, micro=samples, replicas=layout.batch_parts):
        draft.put({"fault_tolerance.shares": shares}, note="whole microbatches a share")


def _answer_length(draft: Draft) -> None:
    draft.carried(STEPS, {"train.steps": _number(draft, STEPS)})
    draft.carried("training.seq_len", {"data.sequence": _number(draft, "training.seq_len")})


def _answer_optimizer(draft: Draft) -> None:
    name = draft.word("optimizer.name") or "AdamW"
    for key, default in _ADAM_DEFAULTS.items():
        written = draft.number(f"optimizer.{key}")
        draft.carried(f"optimizer.{key}", {f"{ADAMW}{key}": default if written is None else written})
    betas = [draft.number(f"optimizer.{key}") for key in _BETAS]
    draft.put(
        {f"{ADAMW}betas": [beta or default for beta, default in zip(betas, _BETAS.values(), strict=True)]}
    )
    for key in _BETAS:
        draft.carried(f"optimizer.{key}", f"{ADAMW}betas")
    if name == "AdamW":
        draft.carried("optimizer.name", "train.optimizer.adamw")
    elif name == "Adam":
        reason = "the decay is never part of the gradient; without decay the two are one"
        draft.changed("optimizer.name", "train.optimizer.adamw", reason=reason)
    else:
        draft.impossible("optimizer.name", f"adamw and sgd are here; adamw with the rate of {name} stands in")
        draft.warnings.append(f"No {name} here: train.optimizer is not what the file says.")
    if draft.switch("optimizer.early_step_in_backward"):
        draft.impossible(
            "optimizer.early_step_in_backward", "weights change once a step, after the norm is known"
        )
    else:
        draft.irrelevant("optimizer.early_step_in_backward", "off")
    for key in ("implementation", "fused"):
        draft.irrelevant(f"optimizer.{key}", "which kernel computes the same update")


def _answer_schedule(draft: Draft) -> None:
    """A warm-up, a stable stretch and a fall: here a fall begins where the warm-up ends."""
    steps, warmup = _number(draft, STEPS), _number(draft, WARMUP)
    kind = draft.word(DECAY_TYPE) or "linear"
    schedule = "cosine" if kind == "cosine" else "linear"
    target = f"train.lr_schedule.{schedule}"
    if warmup > steps:
        reason = f"torchtitan cuts the warm-up to the {steps} steps of the run"
        draft.changed(WARMUP, {f"{target}.warmup": steps}, reason=reason)
    else:
        draft.carried(WARMUP, {f"{target}.warmup": warmup})
    draft.carried(FLOOR, {f"{target}.floor": draft.number(FLOOR) or 0})
    if kind in ("linear", "cosine"):
        draft.carried(DECAY_TYPE, target)
    else:
        draft.changed(
            DECAY_TYPE, target, reason="a straight fall in place of one with the square root of the steps"
        )
    ratio = draft.number(DECAY_RATIO)
    stable = 0 if ratio is None else max(0, steps - min(warmup, steps) - round(steps * ratio))
    if stable == 0:
        draft.carried(DECAY_RATIO, f"{target}.warmup")
    else:
        reason = f"no stable stretch: the fall begins {stable} steps earlier, right after the warm-up"
        draft.changed(DECAY_RATIO, f"{target}.warmup", reason=reason)
    draft.impossible("lr_scheduler.total_steps", "the fall ends with the run")


def _answer_clipping(draft: Draft) -> None:
    limit = draft.number("training.max_norm")
    clip = 1.0 if limit is None else limit
    draft.carried("training.max_norm", {"train.clip": clip if 0 < clip < float("inf") else "off"})


def _answer_seed(draft: Draft) -> None:
    seed = draft.integer("debug.seed")
    if seed is not None:
        draft.carried("debug.seed", {"train.seed": seed})
    for key in ("deterministic", "deterministic_warn_only"):
        draft.irrelevant(f"debug.{key}", "with shares a run gives the same bits in any case")


def _answer_validation(draft: Draft) -> None:
    section = "validation."
    if not draft.switch(f"{section}enable"):
        for key in _VALIDATION_KEYS:
            draft.irrelevant(f"{section}{key}", "validation is off")
        return
    every = draft.integer(f"{section}freq") or 10
    draft.carried(f"{section}enable", "train.evaluate.every")
    draft.carried(f"{section}freq", {"train.evaluate.every": every})
    batches = draft.integer(f"{section}steps")
    if batches is not None and batches > 0:
        draft.carried(f"{section}steps", {"train.evaluate.batches": batches})
    else:
        draft.impossible(f"{section}steps", "a fixed number of batches is scored; set train.evaluate.batches")
    for key in ("dataset", "dataset_path"):
        draft.impossible(f"{section}{key}", "the held-out part of the training text is scored: data.held_out")
    for key in ("local_batch_size", "seq_len"):
        draft.irrelevant(f"{section}{key}", "scored as trained")


_VALIDATION_KEYS = (
    "enable", "dataset", "dataset_path", "local_batch_size", "seq_len", "freq", "steps",
)  # fmt: skip
