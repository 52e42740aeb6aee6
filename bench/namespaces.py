"""Hosts of their own on one machine: network namespaces joined by a bridge, each with a link of a limited rate.

Both directions of every link are limited where they are sent (tc's token bucket filter). Needs root and iproute2.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

PORT = 29_400
"""Of the rendezvous; every set of hosts has its own network."""


class Hosts:
    """So many hosts; a context.

    Args:
        count: Hosts, one rank each.
        rate: Of each link and direction, as tc takes it: ``20mbit``; None for no limit.

    Raises: RuntimeError where namespaces cannot be made, saying what is missing.
    """

    def __init__(self, count: int, rate: str | None) -> None:
        self._prefix = f"bench{os.getpid()}"
        self._count, self._rate = count, rate
        self._num_runs = 0

    def __enter__(self) -> "Hosts":
        missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
        if missing or os.geteuid() != 0:
            raise RuntimeError(f"network namespaces need root and iproute2; missing: {missing or 'root'}")
        try:
            self._connect()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def train(self, job: str, folder: Path, environment: Mapping[str, str]) -> Path:
        """Train a job with one rank on each host, started by torchrun as on real ones; the run's folder.

        Raises: RuntimeError with what the first host said if one failed.
        """
        name = self.run(["-m", "trimtab.runtime.elastic_worker", job], folder, environment)
        (run,) = (folder / "runs").glob(f"*-{name}")
        return run

    def run(self, program: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
        """Run a program with one rank on each host, started by torchrun as on real ones; the name of the run.

        Args:
            program: As torchrun takes it: a file or ``-m`` and a module, then its words.
            folder: In which.
            environment: Besides this process's.

        Raises: RuntimeError with what the first host said if one failed.
        """
        self._num_runs += 1
        name = f"{self._prefix}-{self._num_runs}"
        started = [
            subprocess.Popen(
                [*self._inside(host), *_torchrun(host, self._count, name), *program],
                cwd=folder,
                env={**os.environ, **environment, "GLOO_SOCKET_IFNAME": "eth0"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for host in range(self._count)
        ]
        said = [process.communicate()[1] for process in started]
        if any(process.returncode for process in started):
            raise RuntimeError(f"{program} on {self._count} hosts failed: {said[0][-3000:]}")
        return name

    def sent_bytes(self, host: int) -> int:
        """All that a host has put on its link so far, headers and repeats included."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(subprocess.check_output([*self._inside(host), "cat", path], text=True))

    def _connect(self) -> None:
        hub = f"{self._prefix}hub"
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge", "up")
        for host in range(self._count):
            name, port = self._name(host), f"port{host}"
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", hub)
            _run("ip", "-n", hub, "link", "set", port, "master", "bridge")
            _run("ip", "-n", name, "addr", "add", f"{_address(host)}/24", "dev", "eth0")
            for namespace, device in ((name, "lo"), (name, "eth0"), (hub, port)):
                _run("ip", "-n", namespace, "link", "set", device, "up")
            for namespace, device in ((name, "eth0"), (hub, port)) if self._rate else ():
                bucket = ("tbf", "rate", str(self._rate), "burst", "32kb", "limit", "1mb")
                _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *bucket)

    def _remove(self) -> None:
        """Whatever has been made; links go with their namespaces."""
        for name in (*(self._name(host) for host in range(self._count)), f"{self._prefix}hub"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _name(self, host: int) -> str:
        return f"{self._prefix}host{host}"

    def _inside(self, host: int) -> list[str]:
        return ["ip", "netns", "exec", self._name(host)]


def _address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def _torchrun(host: int, count: int, name: str) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count), "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{_address(0)}:{PORT}", "--rdzv-id", name,
        # A namespace has no name that leads to its address: who listens must be said.
        "--rdzv-conf", f"is_host={'true' if host == 0 else 'false'}", "--local-addr", _address(host),
    ]  # fmt: skip


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr.strip()}")
