"""The flags of one launch, by name, with values read when they are asked for."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Never

from trimtab.spec.migration.megatron.topics import gatherers, is_read_flag, switches
from trimtab.spec.migration.settings import MigrationError


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One flag as it was found.

    Args:
        name: As the command line spells it: ``--lr``.
        values: What stood behind it; empty for a switch.
        shown: The name that its author wrote, where that differs: ``model.optim.lr``.
        given: The value that its author wrote, where that differs: ``CosineAnnealing``.
    """

    name: str
    values: tuple[str, ...] = ()
    shown: str = ""
    given: str = ""

    @property
    def written(self) -> str:
        """The name that its author wrote."""
        return self.shown or self.name

    @property
    def text(self) -> str:
        """Its values as one text."""
        return " ".join(self.values)

    @property
    def is_loose(self) -> bool:
        """Whether it is a word that belongs to no flag: a variable that may hold flags."""
        return not self.name.startswith(("--", "export ")) and not self.shown

    @property
    def is_known(self) -> bool:
        """Whether no value names a variable that the script leaves open."""
        return "$" not in self.text and "`" not in self.text


def parse_flags(words: Iterable[str]) -> Iterator[Flag]:
    """The flags of a command line: a word that begins with ``--``, then its values.

    A variable that stands where no value can, such as the ``$ARGS`` of another script, is a flag of its own name.

    >>> [flag.written + " " + flag.text for flag in parse_flags(["--lr", "1e-4", "--bf16", "--seed=-1"])]
    ['--lr 1e-4', '--bf16 ', '--seed -1']
    >>> [flag.name for flag in parse_flags(["$OPTIONS", "--bf16", "$MORE", "--lr", "$LR"])]
    ['$OPTIONS', '--bf16', '$MORE', '--lr']
    """
    name: str | None = None
    values: list[str] = []
    loose: list[str] = []
    for word in words:
        if _NAME.match(word):
            yield from _flags(name, values, loose)
            name, has_value, value = word.partition("=")
            values, loose = [value] if has_value else [], []
        elif name is None or (_VARIABLE.fullmatch(word) and not _takes(name, values, word)):
            loose.append(word)
        else:
            values.append(word)
    yield from _flags(name, values, loose)


_NAME = re.compile(r"--[A-Za-z]")
_VARIABLE = re.compile(r"\$(\w+|\{[^{}]*\}|@)")
_HOLDS_FLAGS = re.compile(r"ARGS|OPTIONS|OPTS|PARAMS|FLAGS|EXTRA", re.IGNORECASE)


def _takes(name: str, values: Sequence[str], variable: str) -> bool:
    """Whether a flag that has some values can take a variable as one more."""
    if _HOLDS_FLAGS.search(variable):
        return False
    spelling = _spelling(name)
    return spelling not in switches() and (
        not values or not is_read_flag(spelling) or spelling in gatherers()
    )


def _flags(name: str | None, values: Sequence[str], loose: Sequence[str]) -> Iterator[Flag]:
    """A flag, and what stood behind it and is none of its own."""
    if name is not None:
        yield Flag(name=name, values=tuple(values))
    for word in loose:
        yield Flag(name=word)


class Flags:
    """Flags by name; of one that stands twice the last counts, as argparse has it."""

    def __init__(self, flags: Iterable[Flag]) -> None:
        self._all = tuple(flags)
        self._last = {_spelling(flag.name): flag for flag in self._all}

    def __iter__(self) -> Iterator[Flag]:
        """All flags in the order in which they were found, those that do not count too."""
        return iter(self._all)

    def __contains__(self, name: str) -> bool:
        """Whether the flag was given."""
        return _spelling(name) in self._last

    def find(self, name: str) -> Flag | None:
        """The flag that counts under a name, or None."""
        return self._last.get(_spelling(name))

    def counts(self, flag: Flag) -> bool:
        """Whether no later flag of the same name replaces this one."""
        return self.find(flag.name) is flag

    def is_open(self, name: str) -> bool:
        """Whether the flag was given with a variable whose value nobody knows."""
        flag = self.find(name)
        return flag is not None and not flag.is_known

    def text(self, name: str) -> str | None:
        """The value as text; None if the flag was not given, has no value, or its value is open."""
        flag = self.find(name)
        return flag.text if flag is not None and flag.values and flag.is_known else None

    def texts(self, name: str) -> tuple[str, ...]:
        """All values that are known."""
        flag = self.find(name)
        return flag.values if flag is not None and flag.is_known else ()

    def whole(self, name: str) -> int | None:
        """The value as a whole number.

        Raises: MigrationError if it is none.
        """
        number = self.number(name)
        if number is None:
            return None
        if number != int(number):
            self._refuse(name, "a whole number")
        return int(number)

    def positive(self, name: str) -> int | None:
        """The value as a whole number of at least 1.

        Raises: MigrationError if it is none.
        """
        number = self.whole(name)
        if number is not None and number < 1:
            self._refuse(name, "a whole number of at least 1")
        return number

    def number(self, name: str) -> float | None:
        """The value as a finite number; Python's ``1_000`` counts, as argparse reads it.

        Raises: MigrationError if it is none.
        """
        text = self.text(name)
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            self._refuse(name, "a number")
        if not abs(number) < float("inf"):
            self._refuse(name, "a finite number")
        return number

    def _refuse(self, name: str, takes: str) -> Never:
        flag = self._last[_spelling(name)]
        raise MigrationError(f"{flag.written} is {flag.text!r}; it takes {takes}")


def _spelling(name: str) -> str:
    """A name whatever its hyphens: argparse keeps ``--local_rank`` and ``--local-rank`` apart, authors do not."""
    return name.replace("_", "-").casefold()
