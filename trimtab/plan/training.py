"""What is trained, as far as a plan depends on it."""

from dataclasses import dataclass

from trimtab.catalog import Network


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
