"""Errors of the runtime.

RunError
├── CollectiveError    a collective broke: a peer died, or the network did
├── CorruptionError    a rank computes wrong numbers
├── RankError          this rank cannot go on
└── FingerprintError   this process may not join an exact run
"""

from trimtab.policy.probing import Verdict
from trimtab.terms import RunError


class CollectiveError(RunError):
    """A collective of the present epoch broke under this rank."""


class CorruptionError(RunError):
    """Two ranks have different bits where all must have the same; raised on all ranks alike.

    Args:
        verdict: Who is wrong.
        step: That it was found in; nothing of it is committed.
        is_state: Whether parameters differ, so that steps before this one may be wrong, too.
    """

    def __init__(self, verdict: Verdict, *, step: int, is_state: bool = False) -> None:
        super().__init__(verdict.reason)
        self.verdict, self.step, self.is_state = verdict, step, is_state


class RankError(RunError):
    """This rank cannot go on; the message is the first cause."""


class FingerprintError(RunError):
    """Device kind, instruction set or libraries differ from those that the run began with."""
