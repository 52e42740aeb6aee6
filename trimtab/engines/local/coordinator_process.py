"""The coordinator as a process that the first agent keeps alive."""

import errno
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from trimtab.engines.errors import LaunchError
from trimtab.engines.launch import RUN_VARIABLE, Launch

COORDINATOR_MODULE = "trimtab.engines.local.coordinator"
_MAX_BARREN = 5
"""How many coordinators may end by themselves, one after the other, before one has answered anybody."""
_PAUSE_S = 0.2
"""Between one that ended without having answered, and the next."""


class CoordinatorProcess:
    """Starts a coordinator, and another whenever one ends before it should.

    The socket that agents connect to belongs to this process: the address stays, and whoever connects while nobody
    serves waits there.

    Args:
        token: Of the run.
        first: Name of this host's agent.
        has_ended: Called when a coordinator has ended, with how; it may have ended because the run is over.

    Raises: LaunchError if nobody can listen where the run says.
    """

    def __init__(
        self,
        launch: Launch,
        selector: selectors.BaseSelector,
        *,
        token: str,
        first: str,
        has_ended: Callable[[str], None],
    ) -> None:
        self._launch, self._selector, self._token, self._first = launch, selector, token, first
        self._has_ended = has_ended
        self._listener = _listen(launch)
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._num_barren = 0
        self._start_at_s: float | None = None
        self.log = launch.folder / "logs" / "coordinator.log"

    @property
    def address(self) -> tuple[str, int]:
        """Where it is reached."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    @property
    def is_hopeless(self) -> bool:
        """Whether one after the other ended by itself without having answered."""
        return self._num_barren >= _MAX_BARREN

    @property
    def is_running(self) -> bool:
        """Whether there is a process, or will be."""
        return self._process is not None or self._start_at_s is not None

    def start(self) -> None:
        """Start one."""
        self._start_at_s = None
        self.log.parent.mkdir(exist_ok=True)
        ticket = {
            "launch": self._launch.to_json(),
            "token": self._token,
            "first": self._first,
            "listener": self._listener.fileno(),
        }
        with open(self.log, "ab") as output:
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", COORDINATOR_MODULE],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, RUN_VARIABLE: self._launch.run},
                pass_fds=[self._listener.fileno()],
                start_new_session=True,
            )
        self._pidfd = os.pidfd_open(process.pid)
        self._selector.register(self._pidfd, selectors.EVENT_READ, self._on_exit)
        assert process.stdin is not None
        try:
            # It stays open: that it closes tells the coordinator that this process is gone.
            process.stdin.write(json.dumps(ticket).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once; its exit is seen like any other

    def turn(self) -> None:
        """Start the next one when its time has come."""
        if self._start_at_s is not None and time.monotonic() >= self._start_at_s:
            self.start()

    def has_served(self) -> None:
        """The one that runs has answered somebody: it is worth another if it ends."""
        self._num_barren = 0

    def kill(self) -> None:
        """End the one that runs: it hangs, or nobody needs it any more."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End it and the address."""
        self._start_at_s = None
        if self._process is not None:
            self._process.kill()
            self._reap()
        self._listener.close()

    def _on_exit(self) -> None:
        code = self._reap()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if code != -signal.SIGKILL:  # who was killed is not to blame
            self._num_barren += 1
        self._start_at_s = time.monotonic() + (_PAUSE_S if self._num_barren > 1 else 0.0)
        self._has_ended(how)

    def stop_starting(self) -> None:
        """The run is over: none takes the place of one that ended."""
        self._start_at_s = None

    def _reap(self) -> int:
        assert self._process is not None
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        code = self._process.wait()
        self._process = None
        return code


def _listen(launch: Launch) -> socket.socket:
    try:
        return socket.create_server(launch.listen, backlog=launch.hosts + 16)
    except OSError as error:
        host, port = launch.listen
        hint = (
            "another run, or another program, is there"
            if error.errno == errno.EADDRINUSE
            else "see its interfaces"
        )
        raise LaunchError(
            f"cannot listen at {host}:{port}: {error.strerror}; {hint}. Port 0 takes a free one (orchestration.listen)"
        ) from error
