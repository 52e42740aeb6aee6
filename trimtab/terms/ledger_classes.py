"""The classes that a device's time falls into, each in one layer: the ledger's vocabulary."""

from enum import StrEnum


class Layer(StrEnum):
    """Where time leaks."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    STABILITY = "stability"
    DECISION = "decision"
    UNATTRIBUTED = "unattributed"


class LedgerClass(StrEnum):
    """One exclusive class for every nanosecond of every device."""

    USEFUL = "useful"
    COMPUTE_GAP = "compute_gap"
    RECOMPUTE = "recompute"
    PADDING = "padding"
    HOST_WAIT = "host_wait"
    INPUT_WAIT = "input_wait"
    COMM_TRANSFER = "comm_transfer"
    COMM_SKEW = "comm_skew"
    BUBBLE = "bubble"
    CHECKPOINT_STALL = "checkpoint_stall"
    DETECT = "detect"
    RESTART = "restart"
    DEGRADED = "degraded"
    PROBE = "probe"
    EVALUATION = "evaluation"
    QUEUE_IDLE = "queue_idle"
    UNATTRIBUTED = "unattributed"

    @property
    def layer(self) -> Layer:
        """The layer that this class belongs to."""
        return _LAYERS[self]


class Clock(StrEnum):
    """What a rank's timers measure directly, before the ledger splits it into classes.

    ``compute`` becomes useful, padding, recompute and compute_gap by FLOPs; ``comm`` becomes transfer and
    skew by comparison over the ranks; the others are classes already. The order is the layout of a clock
    file: append only.
    """

    UNATTRIBUTED = "unattributed"
    COMPUTE = "compute"
    COMM = "comm"
    INPUT_WAIT = "input_wait"
    HOST_WAIT = "host_wait"
    CHECKPOINT_STALL = "checkpoint_stall"
    EVALUATION = "evaluation"
    DETECT = "detect"
    RESTART = "restart"
    DEGRADED = "degraded"
    BUBBLE = "bubble"
    PROBE = "probe"


_LAYERS = {
    LedgerClass.USEFUL: Layer.COMPUTE,
    LedgerClass.COMPUTE_GAP: Layer.COMPUTE,
    LedgerClass.RECOMPUTE: Layer.COMPUTE,
    LedgerClass.PADDING: Layer.COMPUTE,
    LedgerClass.HOST_WAIT: Layer.COMPUTE,
    LedgerClass.INPUT_WAIT: Layer.COMPUTE,
    LedgerClass.COMM_TRANSFER: Layer.COMMUNICATION,
    LedgerClass.COMM_SKEW: Layer.COMMUNICATION,
    LedgerClass.BUBBLE: Layer.COMMUNICATION,
    LedgerClass.CHECKPOINT_STALL: Layer.STABILITY,
    LedgerClass.DETECT: Layer.STABILITY,
    LedgerClass.RESTART: Layer.STABILITY,
    LedgerClass.DEGRADED: Layer.STABILITY,
    LedgerClass.PROBE: Layer.STABILITY,
    LedgerClass.EVALUATION: Layer.DECISION,
    LedgerClass.QUEUE_IDLE: Layer.DECISION,
    LedgerClass.UNATTRIBUTED: Layer.UNATTRIBUTED,
}
