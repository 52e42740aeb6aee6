"""What a move between another system and Trimtab gives: a job, and what became of each setting."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trimtab.terms import InputError

FORMULA_SEPARATOR = "; "
"""Between the keys and formulas of one `becomes`, as between statements of one line."""


class Fate(StrEnum):
    """What became of a setting on the way."""

    CARRIED = "carried"  # says the same here
    CHANGED = "changed"  # said in another way, or with another effect: the reason tells
    IMPOSSIBLE = "impossible"  # nothing here says it; the reason tells what happens instead
    IRRELEVANT = "irrelevant"  # nothing is lost without it: a default, or a knob of the other system's inside


class MigrationError(InputError):
    """The settings cannot be read, or they train what Trimtab cannot; the message says where and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting as it was found, and what became of it.

    Args:
        flag: Its name where it came from: ``--lr``, ``zero_optimization.stage``, ``train.batch``.
        value: Its value as text; empty for a switch.
        fate: What became of it.
        becomes: The dotted keys and formulas that say it now, separated by ``; ``; empty if nothing does.
        reason: Why it was changed, is impossible or is irrelevant; empty if it was carried as it is.
    """

    flag: str
    value: str
    fate: Fate
    becomes: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        """A carried setting says where to; every other one says why."""
        if self.fate in (Fate.CARRIED, Fate.CHANGED):
            assert self.becomes, f"{self.flag} was carried to nowhere"
        if self.fate is not Fate.CARRIED:
            assert self.reason, f"{self.flag} is {self.fate} without a reason"

    @property
    def targets(self) -> tuple[str, ...]:
        """The keys and formulas of `becomes`, one by one."""
        return tuple(self.becomes.split(FORMULA_SEPARATOR)) if self.becomes else ()

    @property
    def written(self) -> str:
        """The setting as it stood: ``--lr 6e-5``."""
        return f"{self.flag} {self.value}".rstrip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """A job made of another system's settings.

    Args:
        origin: Whose settings, and where they were: ``Megatron-LM settings of pretrain.sh``.
        job: The job file as plain mappings, lists and scalars in the order of the keys to be written, without
            ``parallelism``.
        formulas: The text of the strategy language, one statement a line; empty if the defaults hold.
        settings: Every setting that was found, in the order in which it was found; none is left out.
        notes: Where a value comes from that no setting gave, by dotted key or formula: a default of theirs.
        warnings: What a reader must know beyond single settings, as sentences.
    """

    origin: str
    job: Mapping[str, Any]
    formulas: str
    settings: tuple[Setting, ...]
    notes: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def count(self, fate: Fate) -> int:
        """How many settings met this fate."""
        return sum(setting.fate is fate for setting in self.settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """A job's settings as another system writes them.

    Args:
        target: Whose settings: ``Megatron-LM``.
        text: The file or the command line to write.
        settings: Every key and formula of the job that says something; `flag` is ours, `becomes` theirs.
        warnings: What a reader must know beyond single settings, as sentences.
    """

    target: str
    text: str
    settings: tuple[Setting, ...]
    warnings: tuple[str, ...] = ()

    def count(self, fate: Fate) -> int:
        """How many settings met this fate."""
        return sum(setting.fate is fate for setting in self.settings)
