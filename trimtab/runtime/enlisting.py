"""Who started this process, if it is a rank of a run: what ``adopt`` finds when a script calls it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from trimtab.runtime.recorder import Recorder

if TYPE_CHECKING:  # it loads torch, which a script may never need
    from trimtab.runtime.agent_link import Link


class Duty(Protocol):
    """What a rank owes the run once it has adopted it."""

    @property
    def is_fulfilled(self) -> bool:
        """Whether the run needs this rank no more."""

    def fail(self, error: str, *, is_input_error: bool) -> None:
        """Tell the agent why this rank cannot go on."""


@dataclass(kw_only=True, slots=True)
class Enlistment:
    """A process that is a rank of a run.

    Args:
        ticket: What whoever started it handed it.
        connect: Reports to whoever started it, with the fingerprint of this process.
        started_ns: When its script was about to begin.
        duty: Set when the script adopts the run.
        exit_code: Of the script, once it has ended.
    """

    ticket: Mapping[str, Any]
    connect: Callable[[dict[str, str]], "Link"]
    recorder: Recorder
    started_ns: int
    duty: Duty | None = None
    exit_code: int = 0


_enlistments: list[Enlistment] = []
"""None or one: a process is at most one rank."""


@contextmanager
def enlist(enlistment: Enlistment) -> Iterator[None]:
    """Make this process a rank while the block lasts."""
    assert not _enlistments
    _enlistments.append(enlistment)
    try:
        yield
    finally:
        _enlistments.clear()


def enlisted() -> Enlistment | None:
    """How this process is a rank; None if no run started it."""
    return _enlistments[0] if _enlistments else None
