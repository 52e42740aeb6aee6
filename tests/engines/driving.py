"""Starting a run as a user would, watching it from outside, and finding what it left behind."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

TWO_RANKS = ("--set", "orchestration.devices=2", "--set", "fault_tolerance.checkpoint.every=4")
SLOW = ("--inject", "slow:rank=0,step=5,factor=20")
"""Makes every step from the sixth on take a good part of a second."""


@dataclass(frozen=True, kw_only=True)
class Going:
    """A run that goes on meanwhile."""

    process: "subprocess.Popen[str]"
    name: str
    folder: Path

    def events(self, kind: str, journal: str = "agent-1") -> list[dict[str, Any]]:
        """The events of one kind that are in a journal by now."""
        path = self.folder / "journal" / f"{journal}.jsonl"
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["event"] == kind]

    def pids(self, count: int) -> dict[int, int]:
        """The process of each rank, once there are so many."""
        wait_for(lambda: len(self.events("spawned")) >= count)
        return {event["rank"]: event["pid"] for event in self.events("spawned")}

    def wait_for_step(self, step: int) -> None:
        """Until the lead rank has committed this step, counted from 0."""
        wait_for(lambda: any(e["step"] >= step for e in self.events("commit", "rank-0-0")))

    def end(self, limit_s: float = 60.0) -> dict[str, Any]:
        """Wait for the end; the document that was printed."""
        out, _ = self.process.communicate(timeout=limit_s)
        document: dict[str, Any] = json.loads(out)
        return document


@contextlib.contextmanager
def started(
    workplace: Path,
    engine: str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    text: Sequence[str] = TWO_RANKS,
) -> Iterator[Going]:
    """A run of the tiny job under a name that no other run on this machine has; killed at the end if need be."""
    name = f"engine-{os.urandom(5).hex()}"
    command = [
        *(sys.executable, "-m", "trimtab", "run", "tiny.yaml", "--json"),
        *("--set", f"run={name}", "--set", f"orchestration.engine={engine}"),
        *text,
        *arguments,
    ]
    process = subprocess.Popen(
        command,
        cwd=workplace,
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield Going(process=process, name=f"{name}-1", folder=workplace / "runs" / f"{name}-1")
    finally:
        process.kill()
        process.communicate()


def wait_for(look: Callable[[], T | None], limit_s: float = 60.0) -> T:
    """What a look finds, once it finds something true."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it is gone."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in data.decode(errors="replace").split("\0") if "=" in entry)


def processes_of(run: str) -> list[int]:
    """Every process of this user that belongs to a run, by the mark in its environment; zombies have none."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [pid for pid in pids if environment_of(pid).get("TRIMTAB_RUN") == run]


def coordinators_of(run: str) -> list[int]:
    """The processes that decide for a run: one, but for the moment after its death."""
    return [
        pid
        for pid in processes_of(run)
        if b"trimtab.engines.local.coordinator" in command_line(pid).split(b"\0")
    ]


def command_line(pid: int) -> bytes:
    """The command line of a process, its arguments ended by zeros; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def listening_ports(pids: Sequence[int]) -> set[int]:
    """The TCP ports on which these processes listen."""
    sockets = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            sockets |= {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def all_listening_ports() -> set[int]:
    """The TCP ports of this machine on which anybody listens."""
    lines = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]
    ]
    return {int(fields[1].rsplit(":", 1)[1], 16) for fields in lines if fields[3] == "0A"}
