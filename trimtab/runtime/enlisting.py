"""Who started this process, if it is a rank of a run: what ``adopt`` finds when a script calls it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trimtab.runtime.recorder import Recorder
from trimtab.terms import InputError


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
        ticket: What the agent handed it.
        started_ns: When its script was about to begin.
        duty: Set when the script adopts the run.
        exit_code: Of the script, once it has ended.
    """

    ticket: Mapping[str, Any]
    recorder: Recorder
    started_ns: int
    duty: Duty | None = None
    exit_code: int = 0


_enlistments: list[Enlistment] = []
"""None or one: a process is at most one rank."""


def enlist(enlistment: Enlistment) -> None:
    """Make this process a rank, before its script begins."""
    assert not _enlistments
    _enlistments.append(enlistment)


def enlisted() -> Enlistment:
    """How this process is a rank.

    Raises: InputError if nobody made it one.
    """
    if not _enlistments:
        raise InputError(
            "trimtab.adopt was called in a process that no run started.\n"
            "  Start the script by its job file, `script: {file: train.py}` and `trimtab run job.yaml`, or by\n"
            "  `trimtab run --script train.py --set train.steps=100 --set orchestration.devices=4`."
        )
    return _enlistments[0]
