"""The signals that ask an engine to end its attempt, heard inside its loop."""

import selectors
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, the end of an allocation, and the warning that schedulers send before that."""


def is_warned_again(first: int, then: int) -> bool:
    """Whether a further signal only says what was said: a scheduler warns, and sends SIGTERM at the end of the warning.

    Anything else that comes twice is from somebody who does not want to wait.
    """
    return first == signal.SIGUSR1 and then in (signal.SIGUSR1, signal.SIGTERM)


class StopSignals:
    """Takes the stop signals over and wakes a selector when one arrives. Main thread only; close it at the end.

    Args:
        selector: Whose ``select`` returns at once when a signal arrives; the data of the key is a function to call.
        hear: Called with each signal's number, between two instructions of the main thread.
    """

    def __init__(self, selector: selectors.BaseSelector, hear: Callable[[int], None]) -> None:
        self._hear = hear
        reader, writer = self._ends = socket.socketpair()
        for end in self._ends:
            end.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        selector.register(reader, selectors.EVENT_READ, lambda: reader.recv(64))
        self._previous: dict[int, Any] = {
            number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS
        }

    def close(self) -> None:
        """Give the signals back to who had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        for end in self._ends:
            end.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._hear(number)
