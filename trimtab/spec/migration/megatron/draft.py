"""A migration on its way: the job so far, its formulas, and the fate of each flag looked at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.spec.migration.megatron.flags import Flag, Flags
from trimtab.spec.migration.megatron.topics import nearest_flag, read_flags, topic_of
from trimtab.spec.migration.settings import FORMULA_SEPARATOR, Fate, Migration, Setting

OPEN = "its value is a variable that nothing sets here; the default holds"

LOOSE = "no flag takes it; if another script sets it, the flags that it holds are left out: give them behind the file"

_SECTIONS = ("run", "model", "data", "train", "orchestration", "fault_tolerance")
"""The order in which a job file is read."""


@dataclass(slots=True)
class Draft:
    """What the readers of flags fill in, one after the other.

    Args:
        flags: Everything that was found.
        networks: The fields of the networks that ``model.preset`` may name.
        devices: Devices to train on where the flags leave them open; None: as many as they need.
        extra: Settings that are no flags and whose fate is known already.
        job: The job so far.
        statements: Its formulas so far, in order.
        notes: Where a value came from that no flag gave, by key or formula.
        warnings: What a reader must know beyond single flags.
    """

    flags: Flags
    networks: Mapping[str, Mapping[str, Any]]
    devices: int | None = None
    extra: tuple[Setting, ...] = ()
    job: dict[str, Any] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    _fates: dict[Flag | None, Setting] = field(default_factory=dict)

    def set(self, path: str, value: object) -> None:
        """Give a key of the job, by its dotted path, a value."""
        *sections, key = path.split(".")
        place = self.job
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value

    def state(self, statement: str) -> str:
        """Add a formula, unless it stands already."""
        if statement not in self.statements:
            self.statements.append(statement)
        return statement

    def carry(self, name: str, *targets: str, reason: str = "") -> None:
        """A flag, if it was given, says the same here."""
        self._settle(name, Fate.CARRIED, targets, reason)

    def change(self, name: str, *targets: str, reason: str) -> None:
        """A flag, if it was given, is said in another way or with another effect."""
        self._settle(name, Fate.CHANGED, targets, reason)

    def refuse(self, name: str, reason: str) -> None:
        """A flag, if it was given, has no equivalent."""
        self._settle(name, Fate.IMPOSSIBLE, (), reason)

    def refuse_rest(self, name: str, reason: str) -> None:
        """A flag has no equivalent, unless its fate was told already."""
        if not self.is_settled(name):
            self.refuse(name, reason)

    def is_settled(self, name: str) -> bool:
        """Whether the fate of a flag was told."""
        return self.flags.find(name) in self._fates

    def drop(self, name: str, reason: str) -> None:
        """A flag, if it was given, is not needed."""
        self._settle(name, Fate.IRRELEVANT, (), reason)

    def _settle(self, name: str, fate: Fate, targets: tuple[str, ...], reason: str) -> None:
        flag = self.flags.find(name)
        if flag is not None and fate is Fate.CARRIED and not flag.is_known:
            self._fates[flag] = _setting(flag, Fate.IMPOSSIBLE, OPEN)
        elif flag is not None:
            becomes = FORMULA_SEPARATOR.join(targets)
            self._fates[flag] = Setting(
                flag=flag.written,
                value=flag.given or flag.text,
                fate=fate,
                becomes=becomes,
                reason=reason,
            )

    def finish(self, origin: str) -> Migration:
        """The migration; every flag that no reader settled meets the fate of its topic, or is unknown."""
        return Migration(
            origin=origin,
            job={section: self.job[section] for section in _SECTIONS if section in self.job},
            formulas="".join(f"{statement}\n" for statement in self.statements),
            settings=(*(self._setting(flag) for flag in self.flags), *self.extra),
            notes=self.notes,
            warnings=tuple(self.warnings),
        )

    def _setting(self, flag: Flag) -> Setting:
        if not self.flags.counts(flag):
            return _setting(flag, Fate.IRRELEVANT, "given again later, and the last one counts")
        if flag in self._fates:
            return self._fates[flag]
        if flag.is_loose:
            return _setting(flag, Fate.IMPOSSIBLE, LOOSE)
        if topic := topic_of(flag.name):
            return _setting(flag, topic.fate, topic.reason)
        if not flag.is_known:
            return _setting(flag, Fate.IMPOSSIBLE, OPEN)
        assert flag.name not in read_flags(), f"{flag.name} was read and its fate not told"
        nearest = nearest_flag(flag.name)
        hint = f"; the nearest that is known is {nearest}" if nearest else ""
        return _setting(flag, Fate.IMPOSSIBLE, f"Megatron-LM has no such flag that is known here{hint}")


def _setting(flag: Flag, fate: Fate, reason: str) -> Setting:
    return Setting(flag=flag.written, value=flag.given or flag.text, fate=fate, reason=reason)
