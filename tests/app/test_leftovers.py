"""What a run leaves on the machine is seen: its processes, ports and shared memory, and nobody else's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.app.leftovers import Held, is_of_run, processes_of
from trimtab.engines.launch import RUN_VARIABLE

pytestmark = pytest.mark.process

HOLDS = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
file = open(sys.argv[1], "w")
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_what_a_process_of_the_run_holds_is_left_until_it_is_gone() -> None:
    """FT-03: a leftover that nobody sees holds memory and ports until the machine is restarted."""
    run, path = f"left-{os.getpid()}-1", Path(f"/dev/shm/some-{os.getpid()}")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)],
        env={**os.environ, RUN_VARIABLE: run},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            held, others = Held(run=run), Held(run=f"{run}1")
            held.look()
            others.look()
            assert processes_of(run) == [process.pid]
            assert is_of_run(process.pid, run)
            assert held.left() == (f"process {process.pid}", f"port {port}", f"file {path}")
            assert others.left() == (), "the name of one run may begin that of another"
        finally:
            process.kill()
    try:
        assert held.left() == (f"file {path}",), (
            "the kernel closes sockets of the dead, and keeps their files"
        )
    finally:
        path.unlink()
    assert held.left() == ()


def test_shared_memory_is_known_by_the_name_of_its_run() -> None:
    """A file that was written and closed between two looks is left over as well."""
    run = f"left-{os.getpid()}-2"
    path = Path(f"/dev/shm/{run}.buffer")
    held = Held(run=run)
    path.write_bytes(b"x")
    try:
        assert held.left() == (f"file {path}",)
    finally:
        path.unlink()
