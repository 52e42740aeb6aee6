"""The process that the ranks of a host are forked from: what takes them seconds to load is loaded once.

A rank that replaces a lost one begins at once, and a start costs the processor one loading instead of one a device.
"""

import ctypes
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trimtab.engines.launch import Launch

_PR_SET_CHILD_SUBREAPER = 36
_ANSWER_S = 5.0
"""A server that lives answers within milliseconds."""


class ForkServer:
    """A server that is loading, is ready, or is lost; lost, it does not come back, and ranks are started anew.

    Args:
        launch: Names the server's module.
        variables: Added to the environment of the server, and so of every rank.
        selector: Of the loop that it lives in.
        on_settled: Called when it has become ready or was lost while loading.
    """

    def __init__(
        self,
        launch: Launch,
        variables: Mapping[str, str],
        selector: selectors.BaseSelector,
        *,
        on_settled: Callable[[], None],
    ) -> None:
        assert launch.fork_server is not None
        self._selector, self._on_settled = selector, on_settled
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._patient_until_s = time.monotonic() + launch.limits.start_s
        self.is_loading = True
        self.is_lost = False
        log = launch.folder / "logs" / "fork-server.log"
        log.parent.mkdir(exist_ok=True)
        with theirs, open(log, "ab") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    launch.fork_server,
                    str(theirs.fileno()),
                    str(os.getpid()),
                    *launch.loaded_once,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**launch.environment, **variables},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        selector.register(self._channel, selectors.EVENT_READ, self._on_word)

    @property
    def is_ready(self) -> bool:
        """Whether ``fork`` may be called."""
        return not self.is_loading and not self.is_lost

    def turn(self) -> None:
        """Give up a server that loads for longer than a rank may take to start."""
        if self.is_loading and time.monotonic() > self._patient_until_s:
            self.close()
            self._on_settled()

    def fork(self, log: Path) -> tuple[int, int] | None:
        """A new child of this process that waits for its ticket.

        Args:
            log: Takes its output.

        Returns: its process id, and the descriptor to which its ticket is written; None if the server was lost.
        """
        reading, writing = os.pipe()
        try:
            with open(log, "ab") as output:
                _adopt_orphans(True)
                self._channel.settimeout(_ANSWER_S)
                socket.send_fds(self._channel, [b"rank"], [reading, output.fileno()])
                answer = self._channel.recv(16)
        except OSError:
            answer = b""
        finally:
            _adopt_orphans(False)
            os.close(reading)
        if answer:
            return int(answer), writing
        os.close(writing)  # whoever was forked and not heard of reads the end of its ticket, and goes
        self.close()
        return None

    def close(self) -> None:
        """End the server. What was forked from it lives on."""
        if not self.is_lost:
            self.is_loading, self.is_lost = False, True
            self._selector.unregister(self._channel)
            self._channel.close()
            self._process.kill()
            self._process.wait()

    def _on_word(self) -> None:
        try:
            word = self._channel.recv(16)
        except OSError:
            word = b""
        was_loading = self.is_loading
        if word:
            self.is_loading = False
        else:
            self.close()
        if was_loading:
            self._on_settled()


def can_fork(launch: Launch) -> bool:
    """Whether ranks of a launch are forked here: only Linux gives an orphan to somebody who asks for it."""
    return launch.fork_server is not None and sys.platform == "linux"


def _adopt_orphans(wanted: bool) -> None:
    """Whether this process becomes the parent of those of its descendants that lose theirs."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)
