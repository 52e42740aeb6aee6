"""What the user says about steps that are far from their neighbours."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from trimtab.spec.card_types import Card, NaturalInt, PositiveFloat, Takes


class SpikeAnswer(StrEnum):
    """What is done about a step whose loss or gradient norm is far above those before."""

    OFF = "off"
    MARK = "mark"
    SKIP = "skip"
    ROLLBACK = "rollback"


class OnSpike(Card):
    """A finite loss or gradient norm far above those before: what that is, and what is done about it."""

    answer: Annotated[SpikeAnswer, Field(strict=False)] = SpikeAnswer.MARK
    """mark: it is said, the newest checkpoints count as suspect, the last one before stays; skip: the step is not
    applied, too; rollback: all go back to the last checkpoint before, and leave the step's samples out; off: none
    of it. Default: mark."""
    loss: PositiveFloat = 4.0
    """Deviations above the median at which a loss is a spike; a deviation is 1.48 times the median distance from
    the median. Default: 4."""
    grad_norm: PositiveFloat = 6.0
    """Deviations above the median at which a gradient norm is a spike. Default: 6."""
    window: Annotated[int, Field(ge=16), Takes("a whole number of at least 16")] = 64
    """Newest steps that the median is taken over. Default: 64."""
    suspect: NaturalInt = 8
    """Checkpoints of so many steps before a spike are suspect. Default: 8."""
