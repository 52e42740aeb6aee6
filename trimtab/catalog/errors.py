"""What the catalog refuses.

InputError
├── UnknownNameError   nothing in the catalog has this name
└── NetworkError       the fields of a network do not fit together
"""

from collections.abc import Iterable

from trimtab.terms import InputError, nearest_name


class UnknownNameError(InputError):
    """Nothing of this kind has this name; the message lists what there is and the nearest name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """Say that no ``kind`` (a noun such as ``network``) is called ``name``."""
        names = sorted(known)
        nearest = nearest_name(name, names)
        question = f"  Did you mean {nearest!r}?" if nearest else ""
        super().__init__(f"unknown {kind} {name!r}\n  known: {', '.join(names)}.{question}")


class NetworkError(InputError):
    """The fields of a network do not fit together, or one has a value of the wrong type."""


class ClusterError(InputError):
    """A cluster, or the machine that it is built from, lacks what it needs."""
