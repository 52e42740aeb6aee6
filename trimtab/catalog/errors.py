"""What the catalog refuses.

InputError
├── UnknownNameError   nothing in the catalog has this name
├── NetworkError       the fields of a network do not fit together
│   └── ConfigError    a config.json describes no network that can be computed
├── ClusterError       a cluster lacks what it needs
├── FailuresError      a mixture of faults is none
├── PricesError        a table of prices has mistakes
└── ProbeError         a document holds no measurements of a machine
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trimtab.terms import InputError, nearest_name


class UnknownNameError(InputError):
    """Nothing of this kind has this name; the message lists what there is and the nearest name."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, more: str = "") -> None:
        """Say that no ``kind`` (a noun such as ``network``) is called ``name``; ``more`` is what else is known."""
        names = sorted(known)
        nearest = nearest_name(name, names)
        question = f"  Did you mean {nearest!r}?" if nearest else ""
        also = f"\n  {more}" if more else ""
        super().__init__(f"unknown {kind} {name!r}\n  known: {', '.join(names)}.{question}{also}")


class NetworkError(InputError):
    """The fields of a network do not fit together, or one has a value of the wrong type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigProblem:
    """What is wrong with, or what is not carried of, one key of a foreign configuration.

    Args:
        key: Its path, dotted where it is nested.
        message: What was found and what was required.
    """

    key: str
    message: str


class ConfigError(NetworkError):
    """A foreign configuration describes no network that can be computed.

    Args:
        problems: Everything that is wrong, at least one.
    """

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        assert problems, "an error without a problem"
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.message for problem in self.problems))


class ClusterError(InputError):
    """A cluster, or the machine that it is built from, lacks what it needs."""


class FailuresError(InputError):
    """A mixture of faults has a key that there is not, lacks one, or has a value that cannot be."""


class PricesError(InputError):
    """A table of prices has mistakes; the message has a line for each."""


class ProbeError(InputError):
    """A document holds no measurements of a machine, or those of another version."""
