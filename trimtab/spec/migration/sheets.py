"""A job on its way out: the words of a command line so far, and what became of each key and formula."""

from dataclasses import dataclass, field

from trimtab.spec.migration.settings import FORMULA_SEPARATOR, Fate, Setting


@dataclass(slots=True)
class Sheet:
    """What the writers of one system fill in.

    Args:
        flags: Flags with their values, in order, each once.
        settings: Keys and formulas of the job with their fates.
        warnings: What a reader must know beyond them.
    """

    flags: dict[str, None] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def carry(self, name: str, value: str, *flags: str) -> None:
        """A key or formula says the same there."""
        self._add(name, value, Fate.CARRIED, flags, "")

    def change(self, name: str, value: str, *flags: str, reason: str) -> None:
        """A key or formula is said in another way there, or with another effect."""
        self._add(name, value, Fate.CHANGED, flags, reason)

    def refuse(self, name: str, value: str, reason: str) -> None:
        """A key or formula has no equivalent there."""
        self._add(name, value, Fate.IMPOSSIBLE, (), reason)

    def drop(self, name: str, value: str, reason: str) -> None:
        """A key or formula is not needed there."""
        self._add(name, value, Fate.IRRELEVANT, (), reason)

    def _add(self, name: str, value: str, fate: Fate, flags: tuple[str, ...], reason: str) -> None:
        self.flags |= dict.fromkeys(flags)
        self.settings.append(
            Setting(flag=name, value=value, fate=fate, becomes=FORMULA_SEPARATOR.join(flags), reason=reason)
        )
