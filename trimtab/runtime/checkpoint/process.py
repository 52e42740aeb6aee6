"""The writer's process as the trainer sees it: requests in, answers out, and never a wait."""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from trimtab.runtime.checkpoint.durable import write_all
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.checkpoint.writer import ABANDON_SIGNAL

WRITER_MODULE = "trimtab.runtime.checkpoint.writer"
END_TIMEOUT_S = 5.0
"""To discard what is unfinished; a writer that hangs in a system call is killed then."""


class WriterEndedError(Exception):
    """The writer is gone; the message says how."""


class WriterProcess:
    """One writer, from its start to its end.

    ``send`` and ``receive`` do not wait: a request is smaller than a pipe, or a writer that is idle takes it, and answers
    are read as they are.
    """

    def __init__(
        self, *, staging_fd: int, size_bytes: int, folder: Path | ObjectPath, run_folder: Path
    ) -> None:
        """Start it.

        Raises: OSError if that is not possible.
        """
        command = [sys.executable, "-P", "-m", WRITER_MODULE]
        self._process = subprocess.Popen(
            [*command, str(staging_fd), str(size_bytes), str(folder), str(run_folder)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[staging_fd],
            env=_environment(),
        )
        self._stdin = _pipe(self._process.stdin)
        self._stdout = _pipe(self._process.stdout)
        os.set_blocking(self._stdout.fileno(), False)
        self._received = b""
        self.was_ready = False
        """Whether it has come up: one that never has would not come up the next time either."""

    @property
    def pid(self) -> int:
        """Of the process; the name of an unfinished checkpoint ends with it."""
        return self._process.pid

    def send(self, request: Mapping[str, Any]) -> None:
        """Pass a request on.

        Raises: BrokenPipeError if the writer is gone.
        """
        write_all(self._stdin.fileno(), memoryview(json.dumps(request, allow_nan=False).encode() + b"\n"))

    def receive(self) -> list[dict[str, Any]]:
        """The answers that have arrived since the last call.

        Raises: WriterEndedError if the writer is gone and there are none.
        """
        while True:
            try:
                received = os.read(self._stdout.fileno(), 65536)
            except BlockingIOError:
                break
            if not received:
                if b"\n" in self._received:
                    break
                self.end()
                raise WriterEndedError(_exit_reason(self._process.returncode))
            self._received += received
        *lines, self._received = self._received.split(b"\n")
        answers = [json.loads(line) for line in lines]
        self.was_ready = self.was_ready or bool(answers)
        return [answer for answer in answers if answer["event"] != "ready"]

    def wait(self, timeout_s: float | None) -> None:
        """Return when there may be something to receive, or when the time is over."""
        select.select([self._stdout], [], [], timeout_s)

    def end(self) -> None:
        """End the writer, which discards what is unfinished, and reap it."""
        self._stdin.close()
        self._stdout.close()
        # besides closing the pipe: a forked child of this process may still hold it
        self._process.send_signal(ABANDON_SIGNAL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT_S)
            return
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in a system call that not even this ends
            self._process.wait(END_TIMEOUT_S)


def is_writer(pid: int) -> bool:
    """Whether a process of this machine is a checkpoint writer, of whichever run.

    One that is being started may not be yet: the kernel lets its starter go before it shows the command line.
    """
    try:
        return WRITER_MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _environment() -> dict[str, str]:
    """This process's, with the folder of this package in it unless it is installed.

    ``-P`` keeps the current folder out of the path, where a user's ``json.py`` would be taken for Python's.
    """
    root = Path(__file__).parents[3]
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def _exit_reason(code: int | None) -> str:
    if code is None:
        return "it does not end"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
