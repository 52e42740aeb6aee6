"""`python -m trimtab.runtime.fork_server FD AGENT [MODULE...]`: loads once what every rank needs, and is forked into the ranks.

It holds no tensors and starts no threads, or it refuses to serve: a copy of a process with threads, or with a device that
is in use, may hang. The agent starts every rank anew then.
"""

import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import NoReturn

from trimtab.runtime.lifeline import die_with_parent, is_orphan

_UNHEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""What reaches every process of a job that shall stop. The agent decides, and this process ends with it."""
_HANDOVER_S = 5.0
"""How long the kernel may take to give a rank to the agent."""


def main() -> None:
    """Serve until the agent closes the channel, the socket with descriptor FD."""
    die_with_parent(signal.SIGKILL)
    channel, agent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    if is_orphan(agent):
        return
    for number in _UNHEARD:
        signal.signal(number, signal.SIG_IGN)
    import numpy as np  # noqa: F401 - its threads are OpenBLAS's, which ends them at a fork and starts others in the copy

    num_safe = _num_threads()
    _load(sys.argv[3:])
    num_started = _num_threads() - num_safe
    if num_started:
        sys.exit(f"what ranks load has started {num_started} threads: such a process cannot be forked")
    gc.collect()
    gc.freeze()  # the ranks share these pages as long as nobody writes to them
    channel.send(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 16, 2)
        if not message:
            return
        _fork(channel, descriptors, agent)
        for descriptor in descriptors:
            os.close(descriptor)


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _load(modules: Sequence[str]) -> None:
    """What a rank needs: torch and our own modules, and what else this run is going to load."""
    import trimtab.runtime.assembly  # noqa: F401 - to have it

    for module in modules:
        importlib.import_module(module)


def _fork(channel: socket.socket, descriptors: Sequence[int], agent: int) -> None:
    """Start a rank that is the agent's child: its own parent ends at once, and the agent adopts."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
    elif os.fork():
        os._exit(0)
    else:
        _be_rank(channel, descriptors, agent)


def _be_rank(channel: socket.socket, descriptors: Sequence[int], agent: int) -> NoReturn:
    """The life of a rank, from its standard streams on. Never returns into the server's loop."""
    code = 1
    try:
        os.setsid()
        ticket, log = descriptors
        for descriptor, stream in ((ticket, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, stream)
        os.close(ticket)
        os.close(log)
        for number in _UNHEARD:
            signal.signal(number, signal.SIG_DFL)
        deadline_s = time.monotonic() + _HANDOVER_S
        while is_orphan(agent) and time.monotonic() < deadline_s:
            time.sleep(0.001)
        channel.send(str(os.getpid()).encode())
        channel.close()
        from trimtab.runtime.worker import main as be_rank

        be_rank()
        code = 0
    except BaseException:  # noqa: BLE001 - the log is the only one to tell
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
