"""Errors of the runtime.

RunError
├── CollectiveError    a collective broke: a peer died, or the network did
├── RankError          this rank cannot go on
└── FingerprintError   this process may not join an exact run
"""

from trimtab.terms import RunError


class CollectiveError(RunError):
    """A collective of the present epoch broke under this rank."""


class RankError(RunError):
    """This rank cannot go on; the message is the first cause."""


class FingerprintError(RunError):
    """Device kind, instruction set or libraries differ from those that the run began with."""
