"""The batch: any two of its three settings give the third.

    train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * data-parallel ranks

Source: DeepSpeed 0.19, deepspeed/runtime/config.py, whose refusals are repeated here.
"""

from collections.abc import Sequence

from trimtab.spec.constants import auto_shares
from trimtab.spec.migration.deepspeed.devices import BATCH
from trimtab.spec.migration.deepspeed.training_arguments import FILLS
from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.layouts import Layout, microbatch_warning
from trimtab.spec.migration.settings import MigrationError

TOTAL, MICRO, ACCUMULATION = BATCH
ELASTIC = "elasticity.enabled"

MAX_BATCH = 2**24
"""Samples of the largest batch that a job file takes."""


def answer_batch(draft: Draft, layout: Layout) -> None:
    """Write the batch, how many samples are computed at once, and shares that hold whole ones of those.

    Raises: MigrationError where DeepSpeed refuses the configuration.
    """
    if draft.switch(ELASTIC):
        batch, micro = _elastic(draft, layout)
    else:
        batch, micro = _written(draft, layout.batch_parts)
        _answer_written(draft, layout.batch_parts, batch=batch, micro=micro)
    checked_batch(batch)
    product = f"{layout.batch_parts} replicas with {batch // layout.batch_parts} each"
    draft.put({"train.batch": batch, "train.microbatch": micro}, note=product)
    if layout.pp > 1:
        draft.put({"fault_tolerance.shares": layout.batch_parts}, note="each passes the pipeline alone")
        draft.warnings += microbatch_warning(layout, batch // layout.batch_parts // micro)
    elif shares := shares_for(batch=batch, micro=micro, replicas=layout.batch_parts):
        draft.put({"fault_tolerance.shares": shares}, note="whole microbatches a share")
    for key in _ELASTIC_KEYS:
        if f"elasticity.{key}" in draft.unanswered("elasticity."):
            draft.irrelevant(
                f"elasticity.{key}", _ELASTIC_REASON if draft.switch(ELASTIC) else "elasticity is off"
            )


_ELASTIC_REASON = "a lost or new device changes neither the batch nor the bits: see fault_tolerance"
_ELASTIC_KEYS = (
    "enabled", "max_train_batch_size", "micro_batch_sizes", "min_gpus", "max_gpus", "num_gpus_per_node",
    "model_parallel_size", "min_time", "version", "prefer_larger_batch", "ignore_non_elastic_batch_info",
)  # fmt: skip


def checked_batch(batch: int) -> int:
    """A batch that a job can have.

    Raises: MigrationError if it has more samples.
    """
    if batch > MAX_BATCH:
        raise MigrationError(f"the batch is {batch} samples; train.batch takes at most {MAX_BATCH}")
    return batch


def shares_for(*, batch: int, micro: int, replicas: int) -> int | None:
    """Shares that hold whole microbatches, where those of ``auto`` would not; None where they would."""
    shares = auto_shares(batch=batch, devices=replicas)
    if batch % (shares * micro) == 0:
        return None
    return auto_shares(batch=batch // micro, devices=replicas)


def _written(draft: Draft, replicas: int) -> tuple[int, int]:
    """Batch and microbatch, in samples."""
    total, micro, accumulation = (draft.integer(flag) for flag in BATCH)
    if draft.is_auto(MICRO):
        micro = int(FILLS[MICRO].default)
    if total is None and micro is None:
        raise MigrationError(
            f"neither {TOTAL} nor {MICRO} is set, and DeepSpeed needs one of them; add it, or set "
            "it to auto if Hugging Face is to fill it in"
        )
    for flag in BATCH:
        number = draft.integer(flag)
        if number is not None and number < 1:
            raise MigrationError(f"{flag} is {number}; it must be above 0")
    if micro is None:
        assert total is not None, "one of the two is set"
        micro = total // replicas // (accumulation or 1)
    if total is None:
        return micro * (accumulation or 1) * replicas, micro
    steps = accumulation or (total // micro // replicas if micro else 0)
    if micro * steps * replicas != total:
        raise MigrationError(
            f"{TOTAL} is {total}, which is not {MICRO} {micro} times {ACCUMULATION} {steps} "
            f"times {replicas} data-parallel ranks; DeepSpeed refuses that.  Give --devices N, or change one "
            "of the three."
        )
    return total, micro


def _answer_written(draft: Draft, replicas: int, *, batch: int, micro: int) -> None:
    product = f"the product of samples at once, accumulation and {replicas} replicas"
    if draft.is_auto(TOTAL):
        draft.changed(TOTAL, {"train.batch": batch}, reason=f"auto is {product}")
    elif TOTAL in draft:
        draft.carried(TOTAL, {"train.batch": batch})
    if draft.is_auto(MICRO):
        draft.changed(MICRO, {"train.microbatch": micro}, reason=FILLS[MICRO].reason)
        draft.warnings.append(
            "The batch is left to Hugging Face (auto); the job has its defaults. Set train.batch and "
            "train.microbatch to what your TrainingArguments say, or import with them: "
            "-- --per_device_train_batch_size 4"
        )
    elif MICRO in draft:
        draft.carried(MICRO, {"train.microbatch": micro})
    if draft.is_auto(ACCUMULATION):
        draft.changed(ACCUMULATION, {"train.batch": batch}, reason=FILLS[ACCUMULATION].reason)
    elif draft.integer(TOTAL) is None:
        draft.changed(ACCUMULATION, {"train.batch": batch}, reason=f"the batch is {product}")
    else:
        draft.irrelevant(ACCUMULATION, "follows from train.batch, train.microbatch and the devices")


def _elastic(draft: Draft, layout: Layout) -> tuple[int, int]:
    """The largest batch that elasticity allows these devices.

    DeepSpeed may take a smaller one that more numbers of devices divide: here every number of devices trains
    the same batch, so that nothing is gained by it.
    """
    is_overruled = draft.switch("elasticity.ignore_non_elastic_batch_info")
    if not is_overruled and any(flag in draft for flag in BATCH):
        raise MigrationError(
            f"elasticity sets the batch, and {', '.join(flag for flag in BATCH if flag in draft)} "
            "does so too; DeepSpeed refuses that without elasticity.ignore_non_elastic_batch_info"
        )
    most = draft.integer("elasticity.max_train_batch_size") or 0
    fitting = [micro for micro in _micro_batches(draft) if micro > 0 and micro * layout.batch_parts <= most]
    if not fitting:
        raise MigrationError(
            f"no size of elasticity.micro_batch_sizes on {layout.batch_parts} replicas stays within "
            f"elasticity.max_train_batch_size {most}"
        )
    micro = max(fitting, key=lambda size: (most // (size * layout.batch_parts) * size, size))
    batch = most // (micro * layout.batch_parts) * micro * layout.batch_parts
    reason = (
        "DeepSpeed may take a smaller batch that more device counts divide; here any count trains this one"
    )
    draft.changed("elasticity.max_train_batch_size", {"train.batch": batch}, reason=reason)
    reason = "the size that comes nearest to the largest batch"
    draft.changed("elasticity.micro_batch_sizes", {"train.microbatch": micro}, reason=reason)
    for flag in BATCH:
        draft.irrelevant(flag, "elasticity sets the batch")
    return batch, micro


def _micro_batches(draft: Draft) -> Sequence[int]:
    sizes = draft.value("elasticity.micro_batch_sizes")
    if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
        raise MigrationError("elasticity.micro_batch_sizes must be a list of whole numbers")
    return sizes
