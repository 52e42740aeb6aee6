"""The constants of a run: what ``auto`` means is decided once, when the job file is read.

They stand in the resolved job file as plain values. A resumed run reads them there and never derives them
again, so that a changed number of devices changes neither the order of additions nor the bits.
"""

from trimtab.spec.cards import Engine, Job
from trimtab.terms import OnLoss

MIN_AUTO_SHARES = 4
"""Fewest shares that ``auto`` gives: a run begun on one device can then grow to four."""

MAX_AUTO_MICROBATCH = 8
"""Most samples that ``auto`` computes at once: small enough for any device, large enough to fill a CPU."""

CONSTANT_PATHS = (
    ("train", "microbatch"),
    ("fault_tolerance", "shares"),
)
"""The keys that this file resolves."""


def resolve_constants(job: Job, *, replicas: int | None = None) -> Job:
    """The job with every ``auto`` replaced by what it means for this batch and these devices.

    ``replicas`` are the ranks that compute different samples; without it, every device is one.

    Total: a batch that cannot be cut gives values that `contradictions` refuses.
    """
    tolerance = job.fault_tolerance
    shares = tolerance.shares
    replicas = replicas or job.orchestration.devices
    if shares == "auto":
        shares = auto_shares(batch=job.train.batch, devices=replicas)
    microbatch = job.train.microbatch
    if microbatch == "auto":
        microbatch = auto_microbatch(job.train.batch // (replicas if shares == "off" else shares))
    return job.model_copy(
        update={
            "train": job.train.model_copy(update={"microbatch": microbatch}),
            "fault_tolerance": tolerance.model_copy(update={"shares": shares}),
        }
    )


def auto_shares(*, batch: int, devices: int) -> int:
    """Shares for a batch in samples: the smallest power of two >= devices and 4 that divides the batch.

    If no power of two does, the smallest other divisor of at least that size; for a batch below 4, the batch
    itself.

    >>> auto_shares(batch=32, devices=2), auto_shares(batch=96, devices=5), auto_shares(batch=30, devices=4)
    (4, 8, 5)
    """
    fewest = max(devices, MIN_AUTO_SHARES)
    enough = [count for count in divisors(batch) if count >= fewest]
    powers = [count for count in enough if count & (count - 1) == 0]
    return next(iter(powers or enough), batch)


def auto_microbatch(samples: int) -> int:
    """Samples to compute at once out of those of one share: the largest divisor up to 8.

    >>> auto_microbatch(8), auto_microbatch(12), auto_microbatch(7)
    (8, 6, 7)
    """
    return max((size for size in divisors(samples) if size <= MAX_AUTO_MICROBATCH), default=1)


def divisors(number: int) -> list[int]:
    """All divisors of a number, smallest first; none of 0."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def rule_of(job: Job, *, is_replicated: bool) -> OnLoss:
    """What a run does when a rank is lost: what the job says, or what ``auto`` means for its layout.

    It is no constant of the run: a resumed one may have another layout, and so another rule.

    Args:
        job: Its other constants are resolved.
        is_replicated: Whether every rank holds the whole state.
    """
    asked = job.fault_tolerance.on_loss
    if asked is not OnLoss.AUTO:
        return asked
    if job.orchestration.engine is Engine.TORCHRUN or not is_replicated:
        return OnLoss.ROLLBACK
    return OnLoss.EXACT if job.fault_tolerance.shares != "off" else OnLoss.SAME_BATCH
