"""Hosts of their own on one machine: network namespaces joined by a bridge. Needs root and iproute2."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2"
)


@dataclass(frozen=True, kw_only=True)
class Network:
    """So many hosts, each with one link to a bridge; ``eth0`` inside."""

    prefix: str
    count: int

    def inside(self, host: int) -> list[str]:
        """What a command begins with that shall run on a host."""
        return ["ip", "netns", "exec", self.name(host)]

    def address(self, host: int) -> str:
        """Of a host's link."""
        return f"10.78.0.{host + 1}"

    def name(self, host: int) -> str:
        """Of a host's namespace."""
        return f"{self.prefix}h{host}"

    def cut(self, host: int) -> None:
        """Take a host's link down at the bridge: nobody is told, nothing arrives."""
        _run("ip", "-n", f"{self.prefix}hub", "link", "set", f"port{host}", "down")

    def heal(self, host: int) -> None:
        """Bring it up again."""
        _run("ip", "-n", f"{self.prefix}hub", "link", "set", f"port{host}", "up")

    def make(self) -> None:
        """Make namespaces, links and bridge."""
        hub = f"{self.prefix}hub"
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge", "up")
        for host in range(self.count):
            name, port = self.name(host), f"port{host}"
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", hub)
            _run("ip", "-n", hub, "link", "set", port, "master", "bridge")
            _run("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            for namespace, device in ((name, "lo"), (name, "eth0"), (hub, port)):
                _run("ip", "-n", namespace, "link", "set", device, "up")

    def remove(self) -> None:
        """Whatever has been made; links go with their namespaces."""
        for name in (*(self.name(host) for host in range(self.count)), f"{self.prefix}hub"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextmanager
def network(count: int) -> Iterator[Network]:
    """A network of its own, for as long as the block lasts."""
    made = Network(prefix=f"trim{os.urandom(3).hex()}", count=count)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True)
