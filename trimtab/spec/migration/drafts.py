"""A migration in the making: settings are answered one by one, until each has its fate."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from trimtab.spec.fields import all_paths
from trimtab.spec.migration.settings import (
    FORMULA_SEPARATOR,
    Fate,
    Migration,
    MigrationError,
    Setting,
)
from trimtab.terms import nearest_name

Becomes: TypeAlias = str | Mapping[str, Any]
"""What a setting turns into: a formula, a key that is written elsewhere, or dotted keys with their values."""

AUTO = "auto"
"""What a setting says that somebody else is to fill in."""


class WrittenNumber(float):
    """A number that is shown as it was written: ``5e8``, not ``500000000.0``."""

    def __new__(cls, text: str) -> "WrittenNumber":
        """Read a number, and keep its text."""
        number = super().__new__(cls, text)
        number._text = text
        return number

    def __str__(self) -> str:
        """The text that it was read from."""
        return self._text

    _text: str


_VERBS = (
    "MESH", "SPLIT", "PLACE", "STORE", "REDUCE", "AVERAGE", "RECOMPUTE", "OFFLOAD", "KEEP", "COMPUTE",
)  # fmt: skip


class Draft:
    """Settings as they were found, and what has become of them so far.

    ``carried``, ``changed``, ``impossible`` and ``irrelevant`` give a setting its fate; a setting that was not
    found has none, but what it would become is written all the same, so that a default of the other system
    can be spelt out with the same call. An answer that is given twice replaces the first.
    """

    def __init__(
        self,
        found: Iterable[tuple[str, Any]],
        *,
        system: str,
        name: str,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Begin with settings by their dotted names.

        Args:
            found: Name and value of each, in the order of the text.
            system: Whose settings they are, as messages call it.
            name: Of the text.
            aliases: Other names of settings, older ones for instance, and the names that they are asked for by.

        Raises: MigrationError if a setting stands there under two names.
        """
        self.name = name
        self.warnings: list[str] = []
        self._system = system
        self._found: dict[str, Any] = {}
        self._written: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._formulas: dict[str, None] = {}
        self._notes: dict[str, str] = {}
        self._answers: dict[str, Setting] = {}
        self._known: set[str] = set()
        for written, value in found:
            flag = aliases.get(written, written)
            if flag in self._found:
                raise MigrationError(f"{written} and {self._written[flag]} are names of one setting")
            self._found[flag] = value
            self._written[flag] = written

    def __contains__(self, flag: str) -> bool:
        """Whether a setting was found."""
        self._known.add(flag)
        return flag in self._found

    def writes(self, key: str) -> bool:
        """Whether a key of the job file has been written."""
        return key in self._values

    def unanswered(self, prefix: str = "") -> tuple[str, ...]:
        """The settings without a fate whose names begin so."""
        return tuple(flag for flag in self._found if flag not in self._answers and flag.startswith(prefix))

    def written(self, flag: str) -> str:
        """The name under which a setting stood there."""
        return self._written.get(flag, flag)

    def value(self, flag: str) -> Any:
        """A setting's value as it was written; None if it was not found."""
        self._known.add(flag)
        return self._found.get(flag)

    def is_auto(self, flag: str) -> bool:
        """Whether a setting leaves its value to somebody else."""
        return bool(self.value(flag) == AUTO)

    def integer(self, flag: str) -> int | None:
        """A whole number, ``5e8`` being one; None if the setting is not found or ``auto``."""
        number = self.number(flag)
        if number is not None and number != int(number):
            raise self._wrong(flag, "a whole number")
        return None if number is None else int(number)

    def number(self, flag: str) -> float | None:
        """A number; None if the setting is not found or ``auto``."""
        value = self._given(flag)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(flag, "a number")
        return value

    def switch(self, flag: str) -> bool | None:
        """True or false; None if the setting is not found or ``auto``."""
        value = self._given(flag)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(flag, "true or false")
        return value

    def word(self, flag: str) -> str | None:
        """A text; None if the setting is not found or ``auto``."""
        value = self._given(flag)
        if value is not None and not isinstance(value, str):
            raise self._wrong(flag, "text")
        return value

    def carried(self, flag: str, *becomes: Becomes) -> None:
        """The setting says the same here."""
        self._answer(flag, Fate.CARRIED, becomes, "")

    def changed(self, flag: str, *becomes: Becomes, reason: str) -> None:
        """The setting is said in another way, or has another effect."""
        self._answer(flag, Fate.CHANGED, becomes, reason)

    def impossible(self, flag: str, reason: str) -> None:
        """Nothing here says what the setting says."""
        self._answer(flag, Fate.IMPOSSIBLE, (), reason)

    def irrelevant(self, flag: str, reason: str) -> None:
        """Nothing is lost without the setting."""
        self._answer(flag, Fate.IRRELEVANT, (), reason)

    def put(self, *becomes: Becomes, note: str = "") -> None:
        """Write keys and formulas that no setting stands behind; the note says where they come from."""
        for part in becomes:
            if not isinstance(part, str):
                self._values.update(part)
            elif " " in part:
                self._formulas.setdefault(part)
        if note:
            self._notes |= dict.fromkeys(_targets(becomes), note)

    def targets(self, flag: str) -> tuple[str, ...]:
        """The keys and formulas that a setting has become; none before its fate is told."""
        return self._answers[flag].targets if flag in self._answers else ()

    def unknown(self) -> None:
        """Answer everything that is left: nothing ever asked for it, so the other system would not know it either."""
        for flag in self.unanswered():
            nearest = self._nearest(flag)
            hint = f"; did you mean {nearest}?" if nearest else ""
            self.impossible(flag, f"{self._system} has no such setting{hint}")

    def migration(self, origin: str) -> Migration:
        """The migration, once every setting has its fate."""
        assert not self.unanswered(), f"without a fate: {self.unanswered()}"
        return Migration(
            origin=origin,
            job=_nested({"run": run_name(self.name), **self._values}),
            formulas="".join(f"{line}\n" for line in sorted(self._formulas, key=_rank)),
            settings=tuple(self._answers[flag] for flag in self._found),
            notes=self._notes,
            warnings=tuple(self.warnings),
        )

    def _nearest(self, flag: str) -> str | None:
        """The known setting that was probably meant: of the same section, else of the same name."""
        section, _, key = flag.rpartition(".")
        known = sorted(self._known - self._found.keys())
        siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == section}
        if meant := nearest_name(key, siblings):
            return siblings[meant]
        return next((name for name in known if name.rpartition(".")[2] == key), None)

    def _given(self, flag: str) -> Any:
        return None if self.is_auto(flag) else self.value(flag)

    def _wrong(self, flag: str, wanted: str) -> MigrationError:
        found = _text(self.value(flag))
        return MigrationError(f"{self.written(flag)} is {found}; {self._system} takes {wanted} there")

    def _answer(self, flag: str, fate: Fate, becomes: tuple[Becomes, ...], reason: str) -> None:
        if flag not in self:
            self.put(*becomes, note=f"{self._system}'s default" if fate is Fate.CARRIED else "")
            return
        self.put(*becomes)
        self._answers[flag] = Setting(
            flag=self.written(flag),
            value=_text(self.value(flag)),
            fate=fate,
            becomes=FORMULA_SEPARATOR.join(_targets(becomes)),
            reason=reason,
        )


def run_name(source: str) -> str:
    """A run's name out of a file's: ``configs/DS_Zero3.json`` is ``ds-zero3``.

    >>> run_name("configs/DS_Zero3.json")
    'ds-zero3'
    """
    file = re.split(r"[/\\]", source)[-1]
    stem = file.rpartition(".")[0] or file
    name = re.sub(r"[^a-z0-9]+", "-", stem.casefold()).strip("-")
    return name[:63].strip("-") or "imported"


def size(num_bytes: int) -> str:
    """Bytes as a formula writes them, with nothing lost.

    >>> size(2_000_000_000), size(50 * 2**20), size(7)
    ('2GB', '50MiB', '7B')
    """
    for unit, factor in _UNITS:
        if num_bytes and num_bytes % factor == 0:
            return f"{num_bytes // factor}{unit}"
    return f"{num_bytes}B"


_UNITS = (
    ("GB", 10**9), ("GiB", 2**30), ("MB", 10**6), ("MiB", 2**20), ("KB", 10**3), ("KiB", 2**10),
)  # fmt: skip


def _targets(becomes: Iterable[Becomes]) -> list[str]:
    return [part for whole in becomes for part in ([whole] if isinstance(whole, str) else whole)]


def _text(value: Any) -> str:
    """A value as the other system's file has it, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return "null" if value is None else str(value)


def _rank(formula: str) -> int:
    return _VERBS.index(formula.split()[0])


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as mappings in mappings, in the order of the job file's keys."""
    order = {".".join(path): place for place, path in enumerate(all_paths())}
    nested: dict[str, Any] = {}
    for dotted in sorted(values, key=order.__getitem__):
        *parents, key = dotted.split(".")
        inside = nested
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[key] = values[dotted]
    return nested
