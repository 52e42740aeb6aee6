"""Choices that several rooms name: one enum each."""

from enum import StrEnum


class OnLoss(StrEnum):
    """What happens in the step in which a peer dies."""

    AUTO = "auto"
    EXACT = "exact"
    REDO = "redo"
    ROLLBACK = "rollback"
    SAME_BATCH = "same_batch"
    RESCALE = "rescale"


class ComputeType(StrEnum):
    """The type that matrix products run in; master weights are always fp32."""

    FP32 = "fp32"
    BF16 = "bf16"


class Phase(StrEnum):
    """The part of a step that a rank is in: where a fault can be planted and a hang is named."""

    START = "start"
    COMPUTE = "compute"
    REDUCE = "reduce"
    GATHER = "gather"
    APPLY = "apply"
    CHECKPOINT = "checkpoint"
    EVALUATE = "evaluate"
    REFORM = "reform"
    DONE = "done"


class RunState(StrEnum):
    """How a run ended, or that it has not."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class WeightType(StrEnum):
    """Types that weights are given to others in."""

    FP32 = "fp32"
    BF16 = "bf16"
