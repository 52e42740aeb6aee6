"""What the main thread tells about itself while it works, and what it is told: phase, progress, fences.

Under an agent the answers come over the wire; under an outer launcher nobody asks and nobody answers.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from trimtab.runtime.agent_link import Link
from trimtab.terms import Phase


class Watch(Protocol):
    """The step's view of whoever watches this rank. One thread."""

    def enter(self, phase: Phase, step: int) -> None:
        """A phase of a step begins."""

    def move(self) -> None:
        """There is progress."""

    def waiting(self, operation: str = "") -> AbstractContextManager[None]:
        """A block in which this rank waits for peers, in a collective if it is named: being stuck is not its fault."""

    def raise_if_fenced(self) -> None:
        """Raise Fenced if the epoch is over."""


class LinkWatch:
    """Tells the link, asks the link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def enter(self, phase: Phase, step: int) -> None:
        """See Watch."""
        progress = self._link.progress
        progress.phase, progress.step = phase, step
        progress.count += 1

    def move(self) -> None:
        """See Watch."""
        self._link.progress.count += 1

    @contextmanager
    def waiting(self, operation: str = "") -> Iterator[None]:
        """See Watch."""
        progress = self._link.progress
        if operation:
            progress.operation = f"{operation} of step {progress.step}"
        progress.is_waiting = True
        try:
            yield
        finally:
            progress.is_waiting = False
            progress.count += 1

    def raise_if_fenced(self) -> None:
        """See Watch."""
        self._link.raise_if_fenced()
