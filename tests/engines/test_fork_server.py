"""Ranks are forked from a process that has loaded what they need; whatever becomes of it, they are started."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.conftest import Ran
from tests.engines.conformance import assert_nothing_is_left, launch
from tests.engines.driving import SLOW, Going, command_line, listening_ports, processes_of, started, wait_for
from trimtab.engines.local.rank_host import RankHost
from trimtab.policy import Limits
from trimtab.policy.events import Event, Exited, Spawned

pytestmark = pytest.mark.process

SERVER = b"trimtab.runtime.fork_server"
REPLACING = (*SLOW, "--set", "fault_tolerance.replace=true")
ANEW = b"trimtab.runtime.worker"


def words_of(pid: int) -> list[bytes]:
    """The command line of a process; it is empty for a moment after the kernel has let go of the one that started it."""
    return wait_for(lambda: command_line(pid)).split(b"\0")


def name_of(pid: int) -> str:
    """What a process calls itself; a rank does it after it was forked."""
    name = Path(f"/proc/{pid}/comm")
    return wait_for(lambda: found if (found := name.read_text(encoding="utf-8")) != "python3\n" else "")


def parent_of(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[1])


def server_of(run: Going) -> int:
    """The one that ranks are forked from; they have its command line, and sessions of their own."""
    ranks = {event["pid"] for event in run.events("spawned")}
    (server,) = wait_for(
        lambda: [
            pid
            for pid in processes_of(run.name)
            if pid not in ranks and SERVER in command_line(pid).split(b"\0")
        ]
    )
    return server


def replace_a_rank(run: Going) -> int:
    """Kill rank 1; the process of the one that takes its place."""
    os.kill(run.pids(2)[1], signal.SIGKILL)
    (*_, last) = wait_for(lambda: [event for event in run.events("spawned") if event["incarnation"] > 0])
    return int(last["pid"])


def test_ranks_are_children_of_the_agent(workplace: Path, alone: Ran) -> None:
    """FT-01: all of them, and the one that replaces another; signals, exits and orphans are as if each had been started anew."""
    with started(workplace, "local", *REPLACING) as run:
        run.wait_for_step(5)
        server, ports = server_of(run), listening_ports([run.process.pid])
        replacement = replace_a_rank(run)
        for pid in (*run.pids(3).values(), replacement):
            assert SERVER in words_of(pid)
            assert parent_of(pid) == run.process.pid
            assert os.getsid(pid) == pid
            assert name_of(pid).startswith("rank-")
        assert parent_of(server) == run.process.pid
        document = run.end()
    assert document["weights_sha256"] == alone.document["weights_sha256"]
    assert [recovery["steps_lost"] for recovery in document["recoveries"]] == [0]
    assert_nothing_is_left(run, ports)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_lost_server_costs_time_only(workplace: Path, alone: Ran, number: signal.Signals) -> None:
    """Killed for its memory, or stopped: whoever is lost after it is started anew."""
    with started(workplace, "local", *REPLACING) as run:
        run.wait_for_step(5)
        ports = listening_ports([run.process.pid])
        os.kill(server_of(run), number)
        assert ANEW in words_of(replace_a_rank(run))
        document = run.end()
    assert document["weights_sha256"] == alone.document["weights_sha256"]
    assert_nothing_is_left(run, ports)


def test_a_server_that_ends_while_it_loads(workplace: Path, alone: Ran) -> None:
    """What it loads is broken, perhaps: then the ranks say so themselves, in their own logs."""
    with started(workplace, "local") as run:
        os.kill(server_of(run), signal.SIGKILL)
        assert all(ANEW in words_of(pid) for pid in run.pids(2).values())
        document = run.end()
    assert document["weights_sha256"] == alone.document["weights_sha256"]


Serve = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a program of one line with the far end of a channel as its first argument, and this process as its second."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str) -> "subprocess.Popen[str]":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", program, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            process.wait(60)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_rank_may_have_threads_of_its_own(workplace: Path) -> None:
    """Those of numpy's algebra are there before the fork, and are made anew after it."""
    with started(workplace, "local", *SLOW, "--set", "orchestration.threads=2") as run:
        assert all(SERVER in words_of(pid) for pid in run.pids(2).values())
        assert run.end()["state"] == "done"


def test_threads_are_no_company_for_a_fork(serve: Serve) -> None:
    """A lock that a thread held at the fork is held for ever in the copy."""
    process = serve(
        "import threading, time; from trimtab.runtime import fork_server;"
        "fork_server._load = lambda _: threading.Thread(target=time.sleep, args=(60,), daemon=True).start();"
        "fork_server.main()"
    )
    assert process.returncode == 1
    assert process.stderr is not None
    assert "what ranks load has started 1 threads: such a process cannot be forked" in process.stderr.read()


def test_a_server_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    """After the time that a rank may take to start, those who waited for it are started anew."""
    with hosting(tmp_path, start_s=0.3) as host:
        host.ranks.start(0, 0)
        assert host.ranks.running == ((0, 0),)
        assert host.told == [(Spawned(rank=0, incarnation=0), 0)], (
            "others wait for it, and no process is named"
        )
        wait_for(host.has_spawned)
        assert host.told[1:] == [(Spawned(rank=0, incarnation=0), 1)]


def test_who_waits_for_the_server_can_be_killed(tmp_path: Path) -> None:
    """It is never started then, and the coordinator hears of its end as of any other."""
    with hosting(tmp_path, start_s=60.0) as host:
        host.ranks.start(0, 0)
        host.ranks.start(0, 0)
        host.ranks.kill(0, 0)
        assert host.ranks.running == ()
        _, (exited, _) = host.told
        assert isinstance(exited, Exited)
        assert exited.how == "was not started yet"


@dataclass
class Hosted:
    """A host in the test's own process, and what it has told."""

    ranks: RankHost
    selector: selectors.BaseSelector
    told: list[tuple[Event, int]]
    """Each event, and how many lines of the journal go with it."""

    def has_spawned(self) -> bool:
        """One turn of its loop; whether there is a process."""
        for key, _ in self.selector.select(0.05):
            key.data()
        self.ranks.turn()
        return any(isinstance(event, Spawned) and num_lines for event, num_lines in self.told)


@contextlib.contextmanager
def hosting(folder: Path, *, start_s: float) -> Iterator[Hosted]:
    """A host whose server loads for ever, and whose ranks end at once."""
    (folder / "endless.py").write_text("import time; time.sleep(600)")
    (folder / "brief.py").write_text("")
    request = replace(
        launch(folder),
        module="brief",
        fork_server="endless",
        environment={"PATH": "/bin", "PYTHONPATH": str(folder)},
        limits=Limits(start_s=start_s),
    )
    told: list[tuple[Event, int]] = []
    with selectors.DefaultSelector() as selector:
        ranks = RankHost(
            request,
            selector,
            report=lambda event, lines=(): told.append((event, len(lines))),
            refused=lambda reason: None,
        )
        try:
            yield Hosted(ranks=ranks, selector=selector, told=told)
        finally:
            ranks.kill_everything()
            ranks.close()
