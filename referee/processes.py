"""What the operating system says of a run's processes: pids, CPU time, sockets, shared memory. Linux only."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
"""In which the kernel says when a process was started, and what it has worked."""
_LISTENING = "0A"
_SHARED_MEMORY = "/dev/shm"
RUN_VARIABLE = "TRIMTAB_RUN"
_COORDINATOR = b"trimtab.engines.local.coordinator"
_RANK = b"rank-"
"""How the name begins that a rank gives its process; the one that it is forked from has another."""


@dataclass(frozen=True, kw_only=True, order=True)
class Sighting:
    """A process, told apart from a later one of the same pid by when it was started (clock ticks since boot)."""

    started: int
    pid: int
    parent: int
    cpu_s: float
    """User and system time of all its threads."""

    @property
    def identity(self) -> tuple[int, int]:
        """What two sightings of one process have in common."""
        return self.pid, self.started


def see(pid: int) -> Sighting | None:
    """The process of this pid; None if there is none or it is a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = text[text.rindex(")") + 2 :].split()
    if state in "ZX":
        return None
    parent, user, system, started = (int(fields[index]) for index in (0, 10, 11, 18))
    return Sighting(started=started, pid=pid, parent=parent, cpu_s=(user + system) / TICKS_PER_S)


def processes_of(run: str) -> list[Sighting]:
    """The living processes that have the run's name in their environment, oldest first."""
    found = [see(pid) for pid in all_pids() if run_of(pid) == run]
    return sorted(sighting for sighting in found if sighting is not None)


def run_of(pid: int) -> str:
    """The run that a process belongs to; empty if to none."""
    prefix = f"{RUN_VARIABLE}=".encode()
    names = [entry.removeprefix(prefix) for entry in _environment(pid) if entry.startswith(prefix)]
    return names[0].decode(errors="replace") if names else ""


def ranks_of(run: str, agent: int) -> list[Sighting]:
    """The living ranks of a run: those of the agent's own children that have a rank's name, oldest first."""
    return [process for process in processes_of(run) if process.parent == agent and _is_rank(process.pid)]


def loaders_of(run: str, agent: int) -> list[Sighting]:
    """What the agent's ranks are forked from, once it has loaded what they need."""
    coordinators = coordinators_of(run)
    others = [process for process in processes_of(run) if process not in coordinators]
    return [process for process in others if process.parent == agent and not _is_rank(process.pid)]


def _is_rank(pid: int) -> bool:
    return _bytes(_PROC / str(pid) / "comm").startswith(_RANK)


def coordinators_of(run: str) -> list[Sighting]:
    """The living coordinators of a run: one, but for the moment after its death."""
    return [
        process
        for process in processes_of(run)
        if _COORDINATOR in _bytes(_PROC / str(process.pid) / "cmdline").split(b"\0")
    ]


def ports_of(pid: int) -> set[int]:
    """The TCP ports that a process listens on."""
    listening = dict(_listening_sockets())
    return {listening[link] for link in _open_links(pid) if link in listening}


def listening_ports() -> set[int]:
    """The TCP ports that anybody on this machine listens on."""
    return {port for _, port in _listening_sockets()}


def shared_memory_of(pid: int) -> set[str]:
    """The files in /dev/shm that a process has open or mapped."""
    mapped = {
        line.split(maxsplit=5)[5].removesuffix(" (deleted)")
        for line in _lines(_PROC / str(pid) / "maps")
        if f" {_SHARED_MEMORY}/" in line
    }
    return mapped | {link for link in _open_links(pid) if link.startswith(f"{_SHARED_MEMORY}/")}


def shared_memory_files() -> set[str]:
    """The files in /dev/shm."""
    return {entry.path for entry in os.scandir(_SHARED_MEMORY)}


def all_pids() -> Iterator[int]:
    """Every process of this machine."""
    return (int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit())


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _open_links(pid: int) -> list[str]:
    try:
        descriptors = list(os.scandir(_PROC / str(pid) / "fd"))
    except OSError:
        return []
    links = (_link(entry.path) for entry in descriptors)
    return [link for link in links if link is not None]


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return None


def _listening_sockets() -> Iterator[tuple[str, int]]:
    """The name that a descriptor of each listening socket has in /proc, and its port."""
    for table in ("tcp", "tcp6"):
        for line in _lines(_PROC / "net" / table)[1:]:
            fields = line.split()
            if fields[3] == _LISTENING:
                yield f"socket:[{fields[9]}]", int(fields[1].rpartition(":")[2], 16)
