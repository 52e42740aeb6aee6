"""What a saver tells the training loop, which carries on in every case."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint is durable."""

    step: int
    seconds: float
    """From the beginning of staging until durable."""
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A save did not begin, for a reason that is no fault of the storage."""

    step: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """A save did not succeed; what it had written is removed and older checkpoints are untouched."""

    step: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """An older checkpoint is gone, as planned."""

    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """An older checkpoint that should be gone is still there; the next save tries again."""

    step: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterLost:
    """The process that writes died, or could not be started; a new one is started for the next save."""

    reason: str


Event = Saved | Skipped | Failed | Pruned | Kept | WriterLost
