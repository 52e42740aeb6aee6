"""One rank as an operating-system process: its own session, its own log, no orphan left behind."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trimtab.engines.errors import LaunchError
from trimtab.engines.launch import Launch, Ticket
from trimtab.engines.local.fork_server import ForkServer


@dataclass(slots=True, kw_only=True)
class RankProcess:
    """A started rank.

    Args:
        pid: Its process id, which is also its process group and session.
        wait: Its exit status, once it has exited; negative: the signal.
        pidfd: Becomes readable when it exits.
    """

    rank: int
    incarnation: int
    pid: int
    wait: Callable[[], int]
    pidfd: int
    log: Path
    is_reaped: bool = False

    def is_stopped(self) -> bool:
        """Whether the system has stopped it, by SIGSTOP or a debugger; False where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return fields.rpartition(")")[2].split()[0] in ("T", "t")

    def kill_group(self, number: int = signal.SIGKILL) -> None:
        """Signal the rank and every child it has; only its own session, which died with it if it is reaped."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:  # a zombie group on some kernels
            return

    def reap(self) -> int:
        """Collect the exit status (negative: the signal) of a process that has exited, and end its children."""
        code = self.wait()
        if not self.is_reaped:
            self.kill_group()
            os.close(self.pidfd)
            self.is_reaped = True
        return code


def start_rank(
    launch: Launch, ticket: Ticket, variables: Mapping[str, str], server: ForkServer | None
) -> RankProcess:
    """Start a rank's process, with ``variables`` added to its environment, and hand it its ticket.

    ``server`` forks it, if there is one and it does not fail.

    Raises: LaunchError naming the command and the system's reason.
    """
    folder = launch.folder / "logs"
    folder.mkdir(exist_ok=True)
    log = folder / f"rank-{ticket.rank}-{ticket.incarnation}.log"
    forked = None if server is None else server.fork(log)
    if forked is not None:
        pid, writing = forked
        wait: Callable[[], int] = partial(_wait_for, pid)
    else:
        try:
            process = _start_anew(launch, variables, log)
        except OSError as error:
            raise LaunchError(
                f"rank {ticket.rank} could not be started: {' '.join(launch.command())}: {error}"
            ) from error
        assert process.stdin is not None
        pid, writing, wait = process.pid, os.dup(process.stdin.fileno()), partial(process.wait)
        process.stdin.close()
    try:
        with open(writing, "wb") as stream:
            stream.write(ticket.to_json().encode() + b"\n")
    except BrokenPipeError:
        pass  # it died at once; its exit is seen like any other
    return RankProcess(
        rank=ticket.rank,
        incarnation=ticket.incarnation,
        pid=pid,
        wait=wait,
        pidfd=os.pidfd_open(pid),
        log=log,
    )


def _start_anew(launch: Launch, variables: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    with open(log, "ab") as output:
        return subprocess.Popen(
            launch.command(),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**launch.environment, **variables},
            start_new_session=True,
        )


def _wait_for(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def describe_exit(code: int) -> str:
    """How a process ended, for people.

    >>> describe_exit(-9), describe_exit(1)
    ('signal SIGKILL', 'exit code 1')
    """
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
