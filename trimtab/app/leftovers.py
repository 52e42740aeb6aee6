"""Is anything of a run left on this machine? Processes, listening sockets and shared memory, as the kernel lists them.

A process belongs to a run if the run's name stands in its environment. Linux only: elsewhere nothing is found.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.engines.launch import RUN_VARIABLE

_PROC = Path("/proc")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at, never written to
_LISTENING = "0A"


@dataclass(slots=True)
class Held:
    """What the processes of a run were seen to hold while they lived; look now and then, and once at the end.

    Args:
        run: The run's name.
        sockets: Ports by the kernel's name of the listening socket, which no later socket gets.
        files: Shared memory by path, with its inode.
    """

    run: str
    sockets: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)

    def look(self, *pids: int) -> None:
        """Note what the run's processes, and those of ``pids``, hold now."""
        listening = dict(_listening_sockets())
        for pid in (*pids, *processes_of(self.run)):
            for link in _open_links(pid):
                if link in listening:
                    self.sockets[link] = listening[link]
            for path in _shared_memory_of(pid):
                if (inode := _inode(path)) is not None:
                    self.files[path] = inode

    def left(self) -> tuple[str, ...]:
        """What is there still, in words; empty if nothing is."""
        listening = dict(_listening_sockets())
        named = [entry.path for entry in _entries(_SHARED_MEMORY) if self.run in entry.name]
        files = {path for path, inode in self.files.items() if _inode(path) == inode} | set(named)
        return (
            *(f"process {pid}" for pid in sorted(processes_of(self.run))),
            *(f"port {port}" for name, port in self.sockets.items() if name in listening),
            *(f"file {path}" for path in sorted(files)),
        )


def processes_of(run: str) -> list[int]:
    """The living processes that have the run's name in their environment."""
    return [pid for pid in _pids() if is_of_run(pid, run) and not _is_zombie(pid)]


def is_of_run(pid: int, run: str) -> bool:
    """Whether a process has the run's name in its environment."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:  # it is gone, or somebody else's
        return False
    return f"{RUN_VARIABLE}={run}".encode() in environment.split(b"\0")


def _is_zombie(pid: int) -> bool:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return True
    return text[text.rindex(")") + 2] in "ZX"


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _entries(str(_PROC)) if entry.name.isdigit())


def _shared_memory_of(pid: int) -> set[str]:
    mapped = {
        line.split(maxsplit=5)[5]
        for line in _lines(_PROC / str(pid) / "maps")
        if f" {_SHARED_MEMORY}/" in line and not line.endswith("(deleted)")
    }
    return mapped | {link for link in _open_links(pid) if link.startswith(f"{_SHARED_MEMORY}/")}


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _open_links(pid: int) -> Iterator[str]:
    for entry in _entries(str(_PROC / str(pid) / "fd")):
        try:
            yield os.readlink(entry.path)
        except OSError:  # closed meanwhile
            continue


def _entries(folder: str) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _listening_sockets() -> Iterator[tuple[str, int]]:
    """The name that a descriptor of each listening socket has in /proc, and its port."""
    for table in ("tcp", "tcp6"):
        for line in _lines(_PROC / "net" / table)[1:]:
            fields = line.split()
            if fields[3] == _LISTENING:
                yield f"socket:[{fields[9]}]", int(fields[1].rpartition(":")[2], 16)
