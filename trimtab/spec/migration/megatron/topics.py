"""The flags that Megatron-LM is known to take, and what becomes of those that no key and no formula says."""

import fnmatch
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trimtab.spec.migration.settings import Fate
from trimtab.terms import nearest_name

_READ = "read"


@dataclass(frozen=True, kw_only=True, slots=True)
class Topic:
    """Flags that share a fate.

    Args:
        name: What they are about.
        fate: What becomes of them.
        reason: Why.
        flags: Their names; ``*`` stands for any text.
    """

    name: str
    fate: Fate
    reason: str
    flags: tuple[str, ...]


def topic_of(flag: str) -> Topic | None:
    """The topic of a flag; None if it is unknown, or read elsewhere."""
    exact, patterns = _index()
    if flag in exact:
        return exact[flag]
    return next((topic for pattern, topic in patterns if pattern.match(flag)), None)


def read_flags() -> tuple[str, ...]:
    """The flags that become keys or formulas."""
    return tuple(_tables()[_READ]["flags"])


def is_read_flag(flag: str) -> bool:
    """Whether a flag becomes a key or a formula."""
    return flag in read_flags()


def switches() -> tuple[str, ...]:
    """Those of the flags that are read that take no value."""
    return tuple(_tables()[_READ]["switches"])


def gatherers() -> tuple[str, ...]:
    """Those of the flags that are read that take several values."""
    return tuple(_tables()[_READ]["several"])


def is_known_flag(flag: str) -> bool:
    """Whether Megatron-LM takes, or once took, a flag of this name."""
    return flag in read_flags() or topic_of(flag) is not None


def nearest_flag(flag: str) -> str | None:
    """The known flag whose name is closest."""
    exact, _ = _index()
    return nearest_name(flag, [*read_flags(), *exact])


def topics() -> Iterator[Topic]:
    """Every topic, in the order in which its patterns are looked at."""
    for name, table in _tables().items():
        if name != _READ:
            yield Topic(
                name=name, fate=Fate(table["fate"]), reason=table["reason"], flags=tuple(table["flags"])
            )


@cache
def _index() -> tuple[Mapping[str, Topic], tuple[tuple[re.Pattern[str], Topic], ...]]:
    """Topics by full name, and by pattern."""
    exact: dict[str, Topic] = {}
    patterns: list[tuple[re.Pattern[str], Topic]] = []
    for topic in topics():
        for flag in topic.flags:
            if "*" in flag:
                patterns.append((re.compile(fnmatch.translate(flag)), topic))
            else:
                exact[flag] = topic
    return exact, tuple(patterns)


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    path = resources.files("trimtab.spec").joinpath("data", "migration", "megatron-flags.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))
