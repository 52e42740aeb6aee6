"""What every engine is: it says what it would start, starts it, and stays until the last process is gone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from trimtab.engines.launch import Launch
from trimtab.terms import RunState

Observer = Callable[[str, int, dict[str, Any]], None]
"""Told of everything worth seeing: kind, nanoseconds, fields. Called on the engine's thread; must not block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How an attempt ended. ``results`` are the ranks' own; ``signal_number`` is what asked it to stop, if any did.

    ``is_input_error``: it failed because of the user's input, which only a rank could find. ``is_cut_off``: hosts
    could not reach each other.
    """

    state: RunState
    error: str | None
    results: dict[str, Any]
    signal_number: int | None
    is_input_error: bool = False
    is_cut_off: bool = False


class Request(Protocol):
    """What an engine would start, as a value: building one starts and writes nothing."""

    @property
    def num_processes(self) -> int:
        """How many processes the engine starts itself, each with ``command``."""

    def command(self) -> tuple[str, ...]:
        """The command line of each."""

    def describe(self) -> str:
        """Everything that would be started, for people."""


class Engine(Protocol):
    """Starts the ranks of one attempt of a run and ends them. One instance may run many attempts, one at a time.

    Attributes:
        name: As the job file writes it.
        survives_in_step: Whether ranks finish the step in which a peer dies; if not, the job may only ask for
            ``on_loss: rollback``.
    """

    name: str
    survives_in_step: bool

    def request(self, launch: Launch) -> Request:
        """What ``run`` would start."""

    def run(self, launch: Launch, observe: Observer) -> Outcome:
        """Start the ranks and stay in the foreground until the last process is gone.

        Call it on the main thread: it handles SIGINT, SIGTERM and SIGUSR1 there. The first asks for a clean end
        with the state saved, within ``launch.grace_s``; a second one ends everything by force.

        Raises: LaunchError if a process could not be started.
        """
