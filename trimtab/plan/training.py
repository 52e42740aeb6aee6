"""What is trained, as far as a plan depends on it."""

from dataclasses import dataclass

from trimtab.catalog import Network
from trimtab.spec import Job, Optimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What a plan needs to know of the training besides its strategy.

    Args:
        network: To train.
        batch: Samples of a step.
        microbatch: Samples that a replica computes at once; MICROBATCHES replaces it.
        sequence: Tokens of a sample.
        shares: Parts of the batch whose gradients are added in a fixed tree; None for the backend's own order.
        compute: Type of matrix products: fp32 or bf16.
        num_states: Elements that the optimizer keeps for each of a parameter.
        clips: Whether the gradient's norm is needed.
    """

    network: Network
    batch: int
    microbatch: int
    sequence: int
    shares: int | None
    compute: str
    num_states: int
    clips: bool = True


def training_of(job: Job, network: Network) -> Training:
    """The same of a job whose constants are resolved."""
    shares, microbatch = job.fault_tolerance.shares, job.train.microbatch
    assert shares != "auto", "constants are resolved when the job file is read"
    assert microbatch != "auto", "constants are resolved when the job file is read"
    return Training(
        network=network,
        batch=job.train.batch,
        microbatch=microbatch,
        sequence=job.data.sequence,
        shares=None if shares == "off" else shares,
        compute=job.train.compute.value,
        num_states=num_states(job.train.optimizer),
        clips=job.train.clip != "off",
    )


def num_states(optimizer: Optimizer) -> int:
    """Vectors as long as the parameters that an optimizer keeps.

    >>> from trimtab.spec import AdamW
    >>> num_states(Optimizer(adamw=AdamW()))
    2
    """
    if optimizer.adamw is not None:
        return 2
    return int(optimizer.sgd is not None and optimizer.sgd.momentum > 0)
